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
RUN CGO_ENABLED=0 go build -trimpath -tags noembedded -ldflags="-s -w" -o /out/fencegate ./cmd/fencegate && mkdir -p /out/data

FROM ${BASE}
COPY --from=build /out/fencegate /usr/local/bin/fencegate
# Blobs are written by this user; the volume takes over the folder's owner.
COPY --from=build --chown=65532:65532 /out/data /var/lib/fencegate
USER 65532:65532
VOLUME /var/lib/fencegate
EXPOSE 7070 7432 7480
ENTRYPOINT ["/usr/local/bin/fencegate"]
CMD ["serve"]
