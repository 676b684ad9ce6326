# The gateway: one static binary on a small base. Both images can be replaced, and an empty argument means Go's default:
#   docker build --build-arg BUILDER=… --build-arg BASE=… .
ARG BUILDER=golang:1.26
ARG BASE=gcr.io/distroless/static-debian12:latest

FROM ${BUILDER} AS build
ARG GOPROXY=
ARG GOSUMDB=
ARG GONOSUMDB=
ARG GOFLAGS=
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
# It only serves: without the servers that "fencegate dev" embeds.
RUN CGO_ENABLED=0 go build -trimpath -tags noembedded -ldflags="-s -w" -o /out/fencegate ./cmd/fencegate && \
    sh scripts/notices -tags noembedded >/out/THIRD_PARTY_NOTICES && cp LICENSE /out && mkdir -p /out/data

FROM ${BASE}
COPY --from=build /out/fencegate /usr/local/bin/fencegate
COPY --from=build /out/THIRD_PARTY_NOTICES /out/LICENSE /usr/share/doc/fencegate/
# Blobs are written by this user; the volume takes over the folder's owner.
COPY --from=build --chown=65532:65532 /out/data /var/lib/fencegate
USER 65532:65532
VOLUME /var/lib/fencegate
EXPOSE 7070 7432 7480
# Of the process, not of PostgreSQL and Redis: a restart helps those not. FENCEGATE_GATEWAY names another address.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["/usr/local/bin/fencegate", "health"]
ENTRYPOINT ["/usr/local/bin/fencegate"]
CMD ["serve"]
