"""AlignOPSD: a file for each stage (correspondence, rectification, spans, credit); `method` runs them."""
