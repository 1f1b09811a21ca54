"""What Holdfast knows about: records, their kinds, scopes, places on disk, names, times, settings, queries."""
