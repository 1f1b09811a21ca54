"""The store: one `Memory` over a tree and an index.

`memory` is what callers hold; `reading` turns files into records, `writing` drafts into files, `refreshing` brings the
index up to the files, `recalling` answers queries, `verifying` proves that files and index agree.
"""
