"""What search engines do with text: Lucene's English analyser and BM25."""
