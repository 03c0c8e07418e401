"""What is asked for: classes of requests, lengths and prefixes, each a pure function of the number of the request."""
