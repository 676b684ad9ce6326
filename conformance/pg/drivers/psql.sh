#!/bin/sh
# Connects with what the environment has and nothing else, and writes, as the scripts with cases do with DEFAULTS only. "variables"
# gives the driver nothing, "url" the value of DATABASE_URL (JDBC_URL). Prints a line for each way: its name, and ok or the
# SQLSTATE.
printf 'driver\tpsql %s\n' "$(psql --version | sed 's/[^0-9]*\([0-9.]*\).*/\1/')"
try() {
  way=$1; shift
  if said=$(psql -X -q -v VERBOSITY=verbose -c "INSERT INTO ledger VALUES ('psql')" "$@" 2>&1); then
    printf '%s\tok\n' "$way"
  else
    printf '%s\t%s\n' "$way" "$(echo "$said" | sed -n '1s/.*ERROR:  \([0-9A-Z]\{5\}\):.*/\1/p')"
  fi
}
try variables
try url "$DATABASE_URL"
