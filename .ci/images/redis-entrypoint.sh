#!/bin/sh
# Keeps the contract of the public images of Redis and Valkey: options alone are options of the server,
# data is in /data, and the server does not run as root.
set -e
if [ $# -eq 0 ] || [ "${1#-}" != "$1" ]; then set -- redis-server "$@"; fi
case $1 in
redis-server | valkey-server)
  shift
  set -- redis-server --protected-mode no "$@"
  if [ "$(id -u)" = 0 ]; then
    chown redis: . # /data
    exec setpriv --reuid=redis --regid=redis --clear-groups "$@"
  fi
  ;;
valkey-cli) shift; set -- redis-cli "$@" ;;
esac
exec "$@"
