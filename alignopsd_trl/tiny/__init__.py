"""The tiny policy of the embedded WebShop: scripted shoppers, a word-level tokenizer and the script that trains it."""
