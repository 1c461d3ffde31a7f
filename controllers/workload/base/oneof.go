package base

import (
	"fmt"
	"slices"
	"strings"
)

// OneOf returns an error if the value of a field is neither empty, which means the default, nor one
// of the known values. The webhook says the same, but it may be away, and the API server does not
// check such fields. An unknown value must not be run as another one.
func OneOf[T ~string](field string, value T, known []T) error {
	if value == "" || slices.Contains(known, value) {
		return nil
	}
	names := make([]string, len(known))
	for i, k := range known {
		names[i] = string(k)
	}
	return fmt.Errorf("%s is %q, and must be one of %s", field, value, strings.Join(names, ", "))
}
