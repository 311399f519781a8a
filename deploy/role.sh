#!/bin/sh
# Run once, when the database is made: the role that the application has. What it may do, `quire db upgrade` says.
set -eu
psql --no-psqlrc --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" \
    --set password="$QUIRE_APP_PASSWORD" <<'SQL'
CREATE ROLE quire_app LOGIN PASSWORD :'password';
SQL
