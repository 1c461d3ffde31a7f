package apis

import (
	"context"
	"crypto/sha512"

	"github.com/keelson-io/keelson/differ"
)

// Parse returns the schema of a document.
func (c *SchemaCache) Parse(document []byte) (*differ.Schema, error) {
	return c.parse(context.Background(), document)
}

// Knows reports whether the schema of a document is remembered.
func (c *SchemaCache) Knows(document []byte) bool { return c.find(sha512.Sum512(document)) != nil }
