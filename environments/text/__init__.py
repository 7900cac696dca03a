"""Text processing of search engines: Lucene's English analyser and BM25."""
