# The watchdog of package child. It reads what to guard from stdin, one per line:
#   + PID SIGNAL   end this process          - PID   it has ended
#   d FOLDER       remove this folder        k FOLDER   it is removed, or to be kept
#   m FOLDER       unmount what is there     u FOLDER   it is unmounted
#   c HOST NAME    remove this container     g NAME     it is gone
# The end of the input means that the process which wrote it is gone, in whatever way.
pids= containers= mounts=
set --
while IFS= read -r line; do
  op=${line%% *} rest=${line#* }
  a=${rest%% *} b=${rest#* }
  case $op in
  +) pids="$pids $a:$b" ;;
  -) left=
    for entry in $pids; do [ "${entry%%:*}" = "$a" ] || left="$left $entry"; done
    pids=$left ;;
  d) set -- "$@" "$rest" ;;
  k) n=$#
    while [ "$n" -gt 0 ]; do
      [ "$1" = "$rest" ] || set -- "$@" "$1"
      shift
      n=$((n - 1))
    done ;;
  m) mounts="$mounts $a" ;;
  u) left=
    for entry in $mounts; do [ "$entry" = "$a" ] || left="$left $entry"; done
    mounts=$left ;;
  c) containers="$containers $b@$a" ;;
  g) left=
    for entry in $containers; do [ "${entry%%@*}" = "$a" ] || left="$left $entry"; done
    containers=$left ;;
  esac
done

for entry in $pids; do kill -"${entry#*:}" "${entry%%:*}" 2>/dev/null; done
n=0
for entry in $pids; do
  while kill -0 "${entry%%:*}" 2>/dev/null; do
    n=$((n + 1))
    [ "$n" -lt 50 ] || kill -KILL "${entry%%:*}" 2>/dev/null
    [ "$n" -lt 100 ] || break
    sleep 0.1
  done
done
for entry in $mounts; do umount -l "$entry" 2>/dev/null; done
for folder; do rm -rf -- "$folder" || { sleep 1; rm -rf -- "$folder"; }; done
for entry in $containers; do docker -H "${entry#*@}" rm -f -v "${entry%%@*}" >/dev/null 2>&1; done
