"""A client's mathematics, batched over clients. Arrays in, arrays out; no protocol, no engine."""
