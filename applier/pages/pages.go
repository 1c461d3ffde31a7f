// Package pages lists objects page by page, within a bound.
package pages

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Each calls list for each page of size objects, with the options to use. list returns how many
// objects the page has, and its continue token. The error says that there are more objects than
// most, or is that of list. An empty page counts as one object, because an API server may return a
// continue token endlessly.
func Each(what string, size int64, most int, list func(metav1.ListOptions) (objects int, next string, err error)) error {
	seen := 0
	for o := (metav1.ListOptions{Limit: size}); ; {
		objects, next, err := list(o)
		if err != nil {
			return err
		}
		if seen += max(1, objects); seen > most {
			return fmt.Errorf("list %s: the API server has more than %d, which Keelson does not read", what, most)
		}
		if next == "" {
			return nil
		}
		o.Continue = next
	}
}
