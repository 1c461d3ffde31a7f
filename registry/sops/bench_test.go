package sops_test

import (
	"testing"

	"github.com/keelson-io/keelson/registry/sops"
)

// BenchmarkDecrypt opens a file of 28 encrypted values: once for each file that
// changed, however many clusters read it.
func BenchmarkDecrypt(b *testing.B) {
	data, ids := read(b, "testdata/values.yaml"), identities(b, "keys.txt")
	for b.Loop() {
		f, err := sops.Parse(data)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := f.Decrypt(ids); err != nil {
			b.Fatal(err)
		}
	}
}
