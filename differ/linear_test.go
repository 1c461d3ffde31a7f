//go:build !race

package differ_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// An author of one object must not be able to stop the comparison of all other objects. Sixteen
// times the size may take at most 100 times as long, in every order and with every collision of
// keys. BenchmarkCompareLeaves has the ordinary objects.
func TestHostileObjectsTakeLinearTime(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	rules, err := differ.NewRules(differ.Scopes{Component: []v1alpha1.DangerRule{{Name: "inside", Path: ".spec.atomicList[*].k", When: "new == 'never'", Effect: v1alpha1.EffectHold}}})
	if err != nil {
		t.Fatal(err)
	}
	policy := differ.Policy{Component: component, Rules: rules}
	same := func(spec object) differ.State {
		return differ.State{Recorded: widget(spec), Target: &renderer.Object{Content: widget(spec)}, Live: widget(spec)}
	}
	changed := func(recorded, target, live object) differ.State {
		return differ.State{Recorded: widget(recorded), Target: &renderer.Object{Content: widget(target)}, Live: widget(live)}
	}
	cases := map[string]struct {
		why   string
		state func(n int) differ.State
	}{
		"Shuffled": {"The keys come in no order.", func(n int) differ.State { return same(object{"keyed": shuffled(n, "id", "a")}) }},
		"Reversed": {"Live has the order of the target the other way round.", func(n int) differ.State {
			return changed(object{"set": inOrder(n, 1)}, object{"set": inOrder(n, 1)}, object{"set": inOrder(n, -1)})
		}},
		"Colliding": {"All items have one key.", func(n int) differ.State {
			items := make(list, n)
			for i := range items {
				items[i] = object{"id": "a", "v": fmt.Sprint(i)}
			}
			return changed(object{"keyed": items}, object{"keyed": items}, object{"keyed": items[1:]})
		}},
		"LastCollides": {"Only the last item repeats a key.", func(n int) differ.State {
			items := shuffled(n, "id", "a")
			return same(object{"keyed": append(items, items[0])})
		}},
		"InsideAtomic": {"A rule looks into a list that changes as a whole.", func(n int) differ.State {
			return changed(object{"atomicList": shuffled(n, "k", "a")}, object{"atomicList": shuffled(n, "k", "a")}, object{"atomicList": shuffled(n, "k", "b")})
		}},
		"Shared": {"Another client owns a field of every item.", func(n int) differ.State {
			items, more, applied, others := make(list, n), make(list, n), object{}, object{}
			for i := range items {
				id := fmt.Sprintf("%07d", i)
				items[i], more[i] = object{"id": id}, object{"id": id, "v": "theirs"}
				key := `k:{"id":"` + id + `"}`
				applied[key], others[key] = object{".": object{}, "f:id": object{}}, object{"f:v": object{}}
			}
			s := changed(object{"scalar": "a", "keyed": items}, object{"scalar": "b", "keyed": items}, object{"scalar": "a", "keyed": more})
			owned := func(manager, operation string, keyed object) object {
				return object{"manager": manager, "operation": operation, "fieldsV1": object{"f:spec": object{"f:keyed": keyed}}}
			}
			s.Live["metadata"].(object)["managedFields"] = list{owned("keelson", "Apply", applied), owned("my-operator", "Update", others)}
			return s
		}},
		"Normal": {"Everything differs by an admission that is known.", func(n int) differ.State {
			sent, answer := object{}, object{}
			for i := range n {
				sent[fmt.Sprint(i)], answer[fmt.Sprint(i)] = "a", "b"
			}
			s := changed(object{"map": sent}, object{"map": sent}, object{"map": answer})
			s.Normal = differ.Residue(schemas(t), differ.Change{ID: widgetID, APIVersion: "example.com/v1", Requests: differ.Requests{Patch: s.Recorded}}, s.Live, policy)
			return s
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			// States that exceed the caches take up to four times as long while other programs use
			// the caches. A quadratic comparison takes 256 times as long.
			const n, times, most, rounds = 2000, 16, 100, 12
			less, more := c.state(n), c.state(n*times)
			few, many := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
			// Other load only makes a comparison longer: the least times of enough rounds are those
			// of the comparison.
			for range rounds {
				few, many = min(few, took(t, less, policy)), min(many, took(t, more, policy))
				if many < most*few {
					return
				}
			}
			t.Errorf("%s %d times as much takes %.0f times as long: %s and %s", c.why, times, many.Seconds()/few.Seconds(), few, many)
		})
	}
}

// took returns the processor time of one comparison.
func took(t *testing.T, s differ.State, policy differ.Policy) time.Duration {
	t.Helper()
	s.ID, s.OwnersRead = widgetID, true
	runtime.GC() // collect earlier garbage before the measurement
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start := threadTime(t)
	if _, err := differ.Compare(t.Context(), schemas(t), []differ.State{s}, policy); err != nil {
		t.Fatal(err)
	}
	return threadTime(t) - start
}

// shuffled returns items with a key, in random order.
func shuffled(n int, key, prefix string) list {
	out := make(list, n)
	for i, k := range rand.New(rand.NewPCG(1, 1)).Perm(n) {
		out[i] = object{key: fmt.Sprintf("%s%07d", prefix, k)}
	}
	return out
}

// inOrder returns strings, ascending or descending.
func inOrder(n, step int) list {
	out := make(list, n)
	for i := range out {
		out[i] = fmt.Sprintf("%07d", n+step*i)
	}
	return out
}
