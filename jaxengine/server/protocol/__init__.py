"""What travels: the fields of requests and responses, checked strictly and published as OpenAPI."""
