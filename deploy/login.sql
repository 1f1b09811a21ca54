-- A login for the server, with the rights of holdfast_writer and none of its own. Run it once, as the owner, after the
-- database was migrated:  psql --set=password=… --file=deploy/login.sql
SELECT format('CREATE ROLE holdfast_server LOGIN NOINHERIT PASSWORD %L', :'password')
WHERE NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'holdfast_server') \gexec
GRANT holdfast_writer TO holdfast_server;
