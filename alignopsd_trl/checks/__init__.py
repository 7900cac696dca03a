"""What a run needs before it starts: `intended` is the list; `model_files` looks at weights without loading them,
`tasks` at rows and openings."""
