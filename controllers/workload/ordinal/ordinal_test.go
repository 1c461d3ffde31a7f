package ordinal

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

func reserve(of ...any) []intstr.IntOrString {
	var out []intstr.IntOrString
	for _, v := range of {
		switch v := v.(type) {
		case int:
			out = append(out, intstr.FromInt32(int32(v)))
		case string:
			out = append(out, intstr.FromString(v))
		}
	}
	return out
}

// The ordinals of a spec are those that a count by hand finds.
func TestOrdinals(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		why     string
		start   int32
		reserve []intstr.IntOrString
		want    []int
	}{
		"Plain":    {"They begin at 0.", 0, nil, []int{0, 1, 2, 3, 4}},
		"Start":    {"They begin where the spec says.", 7, nil, []int{7, 8, 9, 10, 11}},
		"Reserved": {"Reserved ones are left out, and the number stays.", 0, reserve(1, 3), []int{0, 2, 4, 5, 6}},
		"Range":    {"A range has both its ends.", 0, reserve("1-3"), []int{0, 4, 5, 6, 7}},
		"Overlap":  {"What is reserved twice is left out once.", 0, reserve("1-3", 3, "2-4", 5), []int{0, 6, 7, 8, 9}},
		"Before":   {"What is before the start counts for nothing.", 5, reserve("0-2", "4-6", 9), []int{7, 8, 10, 11, 12}},
		"AtStart":  {"The start itself can be reserved.", 2, reserve(2), []int{3, 4, 5, 6, 7}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, err := Parse(&v1beta1.StatefulSetSpec{Replicas: new(int32(5)), Ordinals: &v1beta1.StatefulSetOrdinals{Start: c.start}, ReserveOrdinals: c.reserve})
			if err != nil {
				t.Fatal(err)
			}
			var got []int
			for i := range 5 {
				got = append(got, o.At(i))
			}
			for n := range 20 {
				at, is := o.Position(n)
				if want := slices.Index(c.want, n); is != (want >= 0) || is && at != want {
					t.Errorf("%d is at %d, %t; want %d", n, at, is, want)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s -want +got:\n%s", c.why, diff)
			}
		})
	}
}

// A pod belongs to a StatefulSet if its name is exactly that of one of its ordinals.
func TestOf(t *testing.T) {
	t.Parallel()
	for pod, want := range map[string]int{
		"db-0": 0, "db-12": 12, "db-2147483647": 2147483647,
		"db": -1, "db-": -1, "db-x": -1, "db-01": -1, "db--1": -1, "db-+1": -1, "db-1-2": -1, "xdb-1": -1, "db-2147483648": -1,
	} {
		if n, is := Of("db", pod); is != (want >= 0) || is && n != want {
			t.Errorf("%s: %d, %t; want %d", pod, n, is, want)
		}
	}
}
