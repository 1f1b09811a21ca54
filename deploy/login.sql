-- Create a login for the server, with the rights of holdfast_writer only. Run it as the owner, after the schema was
-- created; run it again to change the password:  psql --set=password=… --file=deploy/login.sql
SELECT 'CREATE ROLE holdfast_server'
WHERE NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'holdfast_server') \gexec
SELECT format('ALTER ROLE holdfast_server LOGIN INHERIT PASSWORD %L', :'password') \gexec
GRANT holdfast_writer TO holdfast_server WITH INHERIT TRUE;
