package applier_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/differ"
)

// reports sets the status of the Deployment web as its controller would.
func (w *world) reports(status map[string]any) {
	w.t.Helper()
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		w.t.Fatal(err)
	}
	_, err = w.resource(deployments).Patch(w.t.Context(), "web", types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "controller"}, "status")
	if err != nil {
		w.t.Fatal(err)
	}
}

func conditions(list ...map[string]any) []any {
	var out []any
	for _, c := range list {
		c["lastTransitionTime"] = "2026-01-01T00:00:00Z"
		out = append(out, c)
	}
	return out
}

// allUp is the status of a Deployment of two replicas that are available.
func allUp(generation int) map[string]any {
	return map[string]any{
		"observedGeneration": generation, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2,
		"conditions": conditions(
			map[string]any{"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"},
			map[string]any{"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"},
		),
	}
}

func inWave(manifest, wave string) string {
	return strings.Replace(manifest, "namespace: NS", "namespace: NS, annotations: {keelson.io/wave: '"+wave+"'}", 1)
}

// A later wave comes when this target of the earlier ones is healthy, also when
// another process has begun it.
func TestWaves(t *testing.T) {
	w := newWorld(t)
	later := func(version, image string) applier.Desired {
		return w.want(version, strings.Replace(deployment, "web:v1", image, 1), inWave(configMap("later", version), "1"))
	}
	reached := func(version string) bool {
		t.Helper()
		u, err := w.resource(configMaps).Get(t.Context(), "later", metav1.GetOptions{})
		if err != nil {
			return false
		}
		value, _, _ := unstructured.NestedString(u.Object, "data", "key")
		return value == version
	}
	fails := func(why, message string, want applier.Desired) {
		t.Helper()
		w.reconnect()
		var unhealthy *applier.UnhealthyError
		err := w.try(t.Context(), want, applier.ApplyOptions{Timeout: time.Second})
		if !errors.As(err, &unhealthy) || !strings.Contains(err.Error(), message) {
			t.Errorf("%s: the error is %v", why, err)
		}
		if reached(want.Version) {
			t.Errorf("%s: the next wave was applied", why)
		}
	}
	v1, v2 := later("v1", "web:v1"), later("v2", "web:v2")
	fails("no controller has seen the Deployment", "wave 1 waited 1s: Deployment.apps waves/web: its controller has not seen it yet", v1)
	fails("a process that finds the Deployment already applied waits, too", "wave 1 waited 1s", v1)

	done := make(chan error)
	go func() { done <- w.try(context.WithoutCancel(t.Context()), v1, applier.ApplyOptions{}) }()
	w.reports(allUp(1))
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !reached("v1") {
		t.Error("the next wave was not applied")
	}

	fails("the available pods are of the previous version", "its controller has not seen generation 2 yet, but 1", v2)
	stuck := allUp(2)
	stuck["availableReplicas"], stuck["readyReplicas"] = 1, 1
	stuck["conditions"] = conditions(map[string]any{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "ReplicaSet web-1 has timed out progressing."})
	w.reports(stuck)
	w.reconnect()
	err := w.try(t.Context(), v2, applier.ApplyOptions{Timeout: time.Hour}) // it does not last that long
	if err == nil || !strings.Contains(err.Error(), "wave 1 waits for an object that can't become healthy") || !strings.Contains(err.Error(), "ReplicaSet web-1 has timed out") {
		t.Errorf("what is degraded ends the wait: the error is %v", err)
	}
	w.reports(allUp(2))
	if err := w.try(t.Context(), v2, applier.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	w.settled(v2)

	// Drift is no delivery: what did not change is not waited for.
	w.reports(stuck)
	if err := w.resource(configMaps).Delete(t.Context(), "later", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := w.try(t.Context(), v2, applier.ApplyOptions{Timeout: time.Second}); err != nil || !reached("v2") {
		t.Errorf("the drift of a later wave waited for an object that did not change: %v", err)
	}
}

// A wave does not run ahead of one that a danger rule holds.
func TestHeldWave(t *testing.T) {
	w := newWorld(t)
	rules, err := differ.NewRules(differ.Scopes{Component: []v1alpha1.DangerRule{{
		Name: "mine", Match: v1alpha1.ObjectMatch{Name: "first"}, Path: ".data", Effect: v1alpha1.EffectHold, Because: "it is held",
	}}})
	if err != nil {
		t.Fatal(err)
	}
	target := func(version string) applier.Desired {
		return w.want(version, configMap("first", version), inWave(configMap("second", version), "1"))
	}
	w.apply(target("v1"))
	held := target("v2")
	held.Rules = rules
	if err := w.try(t.Context(), held, applier.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"first", "second"} {
		if value, _, _ := unstructured.NestedString(w.get(configMaps, name).Object, "data", "key"); value != "v1" {
			t.Errorf("%s is %s", name, value)
		}
	}
	w.apply(target("v2"))
	w.settled(target("v2"))
}

// What stands behind something held is not begun, and looking at it writes nothing,
// however often and by whatever process: no intent, and none taken back.
func TestBehindHeldCostsNothing(t *testing.T) {
	rules, err := differ.NewRules(differ.Scopes{Component: []v1alpha1.DangerRule{{
		Name: "mine", Match: v1alpha1.ObjectMatch{Name: "first"}, Path: ".data", Effect: v1alpha1.EffectHold, Because: "it is held",
	}}})
	if err != nil {
		t.Fatal(err)
	}
	all := func(value string, more ...string) []string {
		return append([]string{configMap("first", value), inWave(configMap("second", value), "1")}, more...)
	}
	cases := map[string]struct {
		why        string
		then, next []string
		reached    bool // something of the next version can be done at once
	}{
		"Update":   {why: "The later wave is there, in its old version.", then: all("v1"), next: all("v2")},
		"Create":   {why: "The later wave is new.", then: all("v1"), next: all("v2", inWave(configMap("third", "v2"), "2"))},
		"Delete":   {why: "A deletion comes after all waves.", then: all("v1", configMap("gone", "v1")), next: all("v2")},
		"Reached":  {why: "What needs nothing of the held goes on, once.", then: all("v1"), next: all("v2", configMap("beside", "v2")), reached: true},
		"AllAtOne": {why: "There is no later wave.", then: all("v1"), next: []string{configMap("first", "v2"), inWave(configMap("second", "v1"), "1")}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.apply(w.want("v1", c.then...))
			held := w.want("v2", c.next...)
			held.Rules = rules
			if err := w.try(t.Context(), held, applier.ApplyOptions{}); err != nil {
				t.Fatal(err)
			}
			if c.reached != w.there("beside") {
				t.Errorf("%s what is beside the held one is there: %v", c.why, !c.reached)
			}
			record := w.record()
			var mu sync.Mutex
			var wrote []string
			config := rest.CopyConfig(server)
			config.Wrap(func(next http.RoundTripper) http.RoundTripper {
				return roundTripper(func(r *http.Request) (*http.Response, error) {
					if r.Method != http.MethodGet && !r.URL.Query().Has("dryRun") {
						mu.Lock()
						wrote = append(wrote, r.Method+" "+r.URL.Path)
						mu.Unlock()
					}
					return next.RoundTrip(r)
				})
			})
			for range 2 {
				w.connect(config)
				for range 2 {
					p := w.plan(held)
					if p.Settled() {
						t.Errorf("%s it passes for settled", c.why)
					}
					if _, err := w.cluster.Apply(t.Context(), p, applier.ApplyOptions{Now: time.Unix(2, 0)}); err != nil {
						t.Fatal(err)
					}
				}
			}
			if len(wrote) > 0 || w.record() != record {
				t.Errorf("%s four looks wrote %v, and the record is at %s, was at %s", c.why, wrote, w.record(), record)
			}
			free := w.want("v2", c.next...)
			w.prune(free)
			w.collect()
			w.apply(free)
			w.settled(free)
		})
	}
}

var eventsResource = schema.GroupVersionResource{Version: "v1", Resource: "events"}

// The end of a wait says all that a person would ask for next.
func TestDiagnose(t *testing.T) {
	w := newWorld(t)
	want := w.want("v1", deployment, service)
	w.apply(want)
	w.reports(map[string]any{
		"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "unavailableReplicas": 2,
		"conditions": conditions(
			map[string]any{"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated"},
			map[string]any{"type": "Available", "status": "False", "reason": "MinimumReplicasUnavailable", "message": "Deployment does not have minimum availability."},
		),
	})
	long := strings.Repeat("long ", 500)
	create := func(gvr schema.GroupVersionResource, manifest string, status map[string]any) {
		t.Helper()
		u, err := w.resource(gvr).Create(t.Context(), &unstructured.Unstructured{Object: w.object(manifest)}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if status == nil {
			return
		}
		patch, err := json.Marshal(map[string]any{"status": status})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.resource(gvr).Patch(t.Context(), u.GetName(), types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
			t.Fatal(err)
		}
	}
	podOf := func(name string) string {
		return "{apiVersion: v1, kind: Pod, metadata: {name: " + name + ", namespace: NS, labels: {app: web}}, spec: {containers: [{name: web, image: x}]}}"
	}
	create(podsResource, podOf("web-well"), map[string]any{"phase": "Running", "containerStatuses": []any{map[string]any{
		"name": "web", "image": "x", "imageID": "", "ready": true, "restartCount": 0, "state": map[string]any{"running": map[string]any{}},
	}}})
	create(podsResource, podOf("web-ill"), map[string]any{"phase": "Running", "containerStatuses": []any{map[string]any{
		"name": "web", "image": "x", "imageID": "", "ready": false, "restartCount": 7,
		"state":     map[string]any{"waiting": map[string]any{"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}},
		"lastState": map[string]any{"terminated": map[string]any{"exitCode": 137, "reason": "OOMKilled", "message": long}},
	}}})
	uid := string(w.get(podsResource, "web-ill").GetUID())
	for i, reason := range []string{"Oldest", "Pulled", "Killing", "BackOff"} {
		create(eventsResource, `
apiVersion: v1
kind: Event
metadata: {name: event-`+strings.ToLower(reason)+`, namespace: NS}
involvedObject: {apiVersion: v1, kind: Pod, name: web-ill, namespace: NS, uid: `+uid+`}
reason: `+reason+`
message: of the pod
count: 3
lastTimestamp: 2026-01-01T00:0`+string(rune('0'+i))+`:00Z
`, nil)
	}
	p := w.plan(want)
	got := w.cluster.Diagnose(t.Context(), p)
	for _, part := range []string{
		"Deployment.apps diagnose/web: Available: 0/2",
		"its condition Available is False (MinimumReplicasUnavailable: Deployment does not have minimum availability.)",
		"pod web-ill: container web waits: CrashLoopBackOff: back-off 5m0s, last time it ended with exit code 137 (OOMKilled: long",
		"restarted 7 times",
		"last events: BackOff ×3: of the pod, Killing ×3: of the pod, Pulled ×3: of the pod",
	} {
		if !strings.Contains(got, part) {
			t.Errorf("it does not say %q", part)
		}
	}
	if len(got) > 1500 || strings.Contains(got, "\n") || strings.Contains(got, "Oldest") || strings.Contains(got, "web-well") || t.Failed() {
		t.Errorf("it says %d bytes: %s", len(got), got)
	}

	w.reports(allUp(1))
	if got := w.cluster.Diagnose(t.Context(), w.plan(want)); got != "" {
		t.Errorf("of what is healthy it says %q", got)
	}
}
