"""Bundles as services: requests that arrive over HTTP and gRPC, and the processes that answer
them."""
