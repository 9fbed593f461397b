"""What the words of a command line suggest: mistakes that are hardly meant, and hints for errors."""
