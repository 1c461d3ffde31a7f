package differ_test

import (
	"testing"

	"sigs.k8s.io/structured-merge-diff/v4/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v4/value"

	"github.com/keelson-io/keelson/differ"
)

// A pattern matches its own path, and every path below.
func TestPatterns(t *testing.T) {
	t.Parallel()
	path := fieldpath.MakePathOrDie
	key, member := fieldpath.KeyByFields, func(v any) value.Value { return value.NewValueInterface(v) }
	cases := []struct {
		why, pattern string
		yes, no      []fieldpath.Path
	}{
		{"Nothing names all.", "", []fieldpath.Path{path(), path("a"), path("a", 1)}, nil},
		{"A field, and what lies below.", ".a.b", []fieldpath.Path{path("a", "b"), path("a", "b", "c"), path("a", "b", 0)}, []fieldpath.Path{path("a"), path("b"), path("a", "c"), path("a", "bc"), path()}},
		{"Any one element.", ".a.*.c", []fieldpath.Path{path("a", "b", "c"), path("a", 0, "c"), path("a", key("k", "v"), "c")}, []fieldpath.Path{path("a", "c"), path("a", "b", "b", "c")}},
		{"Any item, which is any element.", ".a[*]", []fieldpath.Path{path("a", 7), path("a", key("k", "v")), path("a", member("x")), path("a", "b")}, []fieldpath.Path{path("a")}},
		{"An item by its place.", ".a[10]", []fieldpath.Path{path("a", 10)}, []fieldpath.Path{path("a", 1), path("a", 11), path("a", "10")}},
		{"An item by its key.", `.a[k="v"].b`, []fieldpath.Path{path("a", key("k", "v"), "b")}, []fieldpath.Path{path("a", key("k", "w"), "b"), path("a", key("l", "v"), "b"), path("a", key("k", "v", "l", "v"), "b")}},
		{"Keys in any order.", `.a[p=80,n="TCP"]`, []fieldpath.Path{path("a", key("n", "TCP", "p", 80))}, []fieldpath.Path{path("a", key("p", 80)), path("a", key("n", "TCP", "p", 81))}},
		{"Keys of all kinds.", `.a[b=true,f=1.5,i=-3]`, []fieldpath.Path{path("a", key("b", true, "f", 1.5, "i", -3))}, []fieldpath.Path{path("a", key("b", false, "f", 1.5, "i", -3)), path("a", key("b", true, "f", 1.5, "i", 3))}},
		{"A large number.", `.a[i=9223372036854775807]`, []fieldpath.Path{path("a", key("i", 9223372036854775807))}, []fieldpath.Path{path("a", key("i", 9223372036854775806))}},
		{"Text with what has a meaning elsewhere.", `.a[k="],\"=[.x"].b`, []fieldpath.Path{path("a", key("k", `],"=[.x`), "b")}, []fieldpath.Path{path("a", key("k", `],`), "b")}},
		{"Text that ends with a backslash.", `.a[k="x\\"].b`, []fieldpath.Path{path("a", key("k", `x\`), "b")}, []fieldpath.Path{path("a", key("k", `x`), "b")}},
		{"A member of a set.", `.a[="x=y"]`, []fieldpath.Path{path("a", member("x=y"))}, []fieldpath.Path{path("a", member("x")), path("a", "x=y")}},
		{"A member that is a number.", `.a[=7]`, []fieldpath.Path{path("a", member(7))}, []fieldpath.Path{path("a", member("7")), path("a", 7)}},
		{"A quoted name.", `.a["x.y/z"].b`, []fieldpath.Path{path("a", "x.y/z", "b")}, []fieldpath.Path{path("a", "x", "y/z", "b"), path("a", "x.y/z")}},
		{"A name with brackets.", `.a["x[0]"]`, []fieldpath.Path{path("a", "x[0]")}, []fieldpath.Path{path("a", "x", 0)}},
		{"A name with a quote.", `["\"]"].b`, []fieldpath.Path{path(`"]`, "b")}, []fieldpath.Path{path(`"`, "b")}},
		{"A name with dots, unquoted.", `.a.x.y.z.b`, []fieldpath.Path{path("a", "x.y.z", "b"), path("a", "x", "y", "z", "b"), path("a", "x.y", "z", "b")}, []fieldpath.Path{path("a", "x.y.zz", "b"), path("a", "x.z", "b"), path("a", "x.y.z")}},
		{"A quoted name is complete: nothing joins it.", `.a["x"].y`, []fieldpath.Path{path("a", "x", "y")}, []fieldpath.Path{path("a", "x.y")}},
		{"Nor does it join.", `.a.x["y"]`, []fieldpath.Path{path("a", "x", "y")}, []fieldpath.Path{path("a", "x.y")}},
		{"Nor does an item.", `.a.x[1].y`, []fieldpath.Path{path("a", "x", 1, "y")}, []fieldpath.Path{path("a", "x.y"), path("a", "x.z", 1, "y")}},
		{"Nor does any element.", `.a.x.*`, []fieldpath.Path{path("a", "x", "y")}, []fieldpath.Path{path("a", "x.*"), path("a", "x.y")}},
	}
	for _, c := range cases {
		t.Run(c.pattern, func(t *testing.T) {
			t.Parallel()
			p, err := differ.ParsePattern(c.pattern)
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range c.yes {
				if !p.Matches(path) {
					t.Errorf("%s %s does not match %s", c.why, c.pattern, path)
				}
			}
			for _, path := range c.no {
				if p.Matches(path) {
					t.Errorf("%s %s matches %s", c.why, c.pattern, path)
				}
			}
		})
	}
}

// A pattern that can't match is an error: it must not let a danger pass.
func TestMalformedPatterns(t *testing.T) {
	t.Parallel()
	for pattern, why := range map[string]string{
		"a":                       "An element has a mark in front.",
		".":                       "A field has a name.",
		".a.":                     "A field has a name.",
		".a..b":                   "A field has a name.",
		".a[":                     "Brackets are closed.",
		`.a["]`:                   "Quotes are closed.",
		`.a["x\"]`:                "An escaped quote closes none.",
		".a[]":                    "Brackets hold something.",
		`.a[""]`:                  "A field has a name.",
		".a[b]":                   "Neither a number nor quoted.",
		".a[a]":                   "Only a number in base 16.",
		".a[-1]":                  "No item stands there.",
		".a[2147483648]":          "No list is so long.",
		".a[`b`]":                 "Go's other quotes are not JSON's.",
		`.a["\q"]`:                "There is no such escape.",
		`.a[k=v]`:                 "Text is quoted.",
		`.a[k='v']`:               "And not in these quotes.",
		`.a[k=]`:                  "A key has a value.",
		`.a[k="\q"]`:              "There is no such escape.",
		`.a[k="a"b]`:              "One value a key.",
		`.a[k=null]`:              "No key is null.",
		`.a[k={}]`:                "No key is a map.",
		`.a[k=[1]]`:               "No key is a list.",
		`.a[k="v",]`:              "A comma stands between keys.",
		`.a[k="v","x"]`:           "A name is no key.",
		`.a[="v",k="v"]`:          "A member of a set has no keys.",
		`.a[k="v",="v"]`:          "A member of a set has no keys.",
		".a[9223372036854775808]": "No list is so long.",
	} {
		if p, err := differ.ParsePattern(pattern); err == nil {
			t.Errorf("%s %s is %+v", why, pattern, p)
		}
	}
}
