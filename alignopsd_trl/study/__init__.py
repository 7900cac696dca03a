"""Methods x environments x seeds under one protocol, and the tables and figures made of their rows.

spec ─► planning ─► run ─► cell (a process each) ─► rows.parquet ─► tables, figures
                                                        ▲
                                                        └── all that rendering reads
"""
