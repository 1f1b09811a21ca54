"""The PostgreSQL engine: one memory for a team, with tenants kept apart (docs/decisions/018).

It needs the extra `postgres`. A program opens a `transactions.Database`, and a vault on it; nobody works with the
rights of the database's owner, and every transaction names its tenant.
"""
