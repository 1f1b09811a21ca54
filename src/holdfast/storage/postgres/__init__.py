"""The PostgreSQL engine: records are rows of one table, and every row names its tenant."""
