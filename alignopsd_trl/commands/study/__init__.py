"""Runs methods x environments x seeds under one protocol, and makes tables and figures from the rows.

spec ─► run ─► cell (a process each) ─► rows.parquet ─► tables, figures
                                                        ▲
                                                        └── all that rendering reads
"""
