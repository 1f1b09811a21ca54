"""The PostgreSQL engine: one memory for a team, with tenants kept apart (docs/decisions/018).

It needs the extra `postgres`. `engine.open_database` opens one tenant's part of a database; every transaction works
with the rights of the application's role and names its tenant.
"""
