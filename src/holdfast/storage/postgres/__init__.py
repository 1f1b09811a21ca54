"""The PostgreSQL engine: one memory for a team, with tenants kept apart (docs/decisions/018).

It needs the extra `postgres`. `database.Database` is one tenant's part of a database; every transaction works
with the rights of the application's role and names its tenant.
"""
