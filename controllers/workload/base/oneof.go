package base

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// OneOf returns an error if the value of a field is neither empty, which means the default, nor one
// of the known values; nil if it is. The webhook and the controllers use it: the webhook may be
// away, and the API server does not check such fields. An unknown value must not be run as another
// one.
func OneOf[T ~string](path *field.Path, value T, known []T) field.ErrorList {
	if value == "" || slices.Contains(known, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, known)}
}
