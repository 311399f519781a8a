#!/bin/sh
# Starts PgBouncer for one role, whose password comes from the environment and is kept in memory alone (/run is a tmpfs).
set -eu
: "${QUIRE_APP_PASSWORD:?is not set}"
folder="${PGBOUNCER_FOLDER:-/run/pgbouncer}"
umask 077
escaped=$(printf '%s' "$QUIRE_APP_PASSWORD" | sed 's/"/""/g')
printf '"quire_app" "%s"\n' "$escaped" > "$folder/userlist.txt"
sed "s|^auth_file = .*|auth_file = $folder/userlist.txt|" "${PGBOUNCER_INI:-/etc/pgbouncer/pgbouncer.ini}" \
    > "$folder/pgbouncer.ini"
unset QUIRE_APP_PASSWORD
exec pgbouncer "$folder/pgbouncer.ini"
