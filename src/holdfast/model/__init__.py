"""The vocabulary of Holdfast: records, kinds, scopes, paths on disk, names, times, settings, queries."""
