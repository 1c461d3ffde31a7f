package differ_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/differ"
)

// Values with the same meaning are equal, and values with nearly the same meaning are not. Keys
// replace values in large lookups, so keys must make the same distinctions.
func TestEqual(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why  string
		a, b any
		want bool
	}{
		"Whole":         {"JSON has one kind of number.", int64(2), 2.0, true},
		"Half":          {"Not cut off.", int64(2), 2.5, false},
		"MinusZero":     {"There is one zero.", 0.0, math.Copysign(0, -1), true},
		"BeyondFloats":  {"The nearest float is another number.", int64(1<<53 + 1), float64(1 << 53), false},
		"LargestFloat":  {"A float that is that integer.", int64(1 << 60), float64(1 << 60), true},
		"Overflow":      {"As an int64 it would turn negative.", int64(math.MinInt64), float64(1 << 63), false},
		"LeastInteger":  {"It is a float, too.", int64(math.MinInt64), float64(math.MinInt64), true},
		"Large":         {"No integer has its value.", 1e300, 1e300, true},
		"TextNumber":    {"Text is no number.", "1", int64(1), false},
		"TextTrue":      {"Text is not true.", "true", true, false},
		"ZeroFalse":     {"A number is not false.", int64(0), false, false},
		"NullAbsent":    {"No API server keeps one apart from the other.", object{"a": nil}, object{}, true},
		"NullValue":     {"Null is no value.", object{"a": nil}, object{"a": ""}, false},
		"NullNested":    {"Also further inside.", list{object{"a": nil, "b": int64(1)}}, list{object{"b": int64(1)}}, true},
		"NullItem":      {"An item that is null is an item.", list{nil}, list{}, false},
		"OtherName":     {"Names count.", object{"a": int64(1)}, object{"b": int64(1)}, false},
		"OneMore":       {"In either.", object{"a": int64(1)}, object{"a": int64(1), "b": int64(1)}, false},
		"Order":         {"The order of a list counts.", list{"a", "b"}, list{"b", "a"}, false},
		"EmptyMap":      {"An empty map is no empty list.", object{}, list{}, false},
		"Borders":       {"Where one text ends counts.", list{"a,", "b"}, list{"a", ",b"}, false},
		"Quotes":        {"Text may look like JSON.", object{"a": `"},"b":{"`}, object{"a": "", "b": ""}, false},
		"NamesNested":   {"Where a map ends counts.", object{"a": object{"b": "x"}, "c": "y"}, object{"a": object{"b": "x", "c": "y"}}, false},
		"NumberInLists": {"Numbers by value, wherever.", list{object{"a": 1.0}}, list{object{"a": int64(1)}}, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if differ.Equal(c.a, c.b) != c.want || differ.Equal(c.b, c.a) != c.want {
				t.Errorf("%s %v and %v are equal: %v", c.why, c.a, c.b, !c.want)
			}
			if differ.Key(c.a) == differ.Key(c.b) != c.want {
				t.Errorf("%s The keys are %s and %s", c.why, differ.Key(c.a), differ.Key(c.b))
			}
			if !differ.Equal(c.a, c.a) || !differ.Equal(c.b, c.b) {
				t.Errorf("%v or %v does not equal itself", c.a, c.b)
			}
		})
	}
}

func TestEqualKeys(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyJSON(t, 1), anyJSON(t, 1)
		if differ.Equal(a, b) != (differ.Key(a) == differ.Key(b)) || differ.Equal(a, b) != differ.Equal(b, a) {
			t.Fatalf("%v and %v: equal %v, keys %s and %s", a, b, differ.Equal(a, b), differ.Key(a), differ.Key(b))
		}
	})
}
