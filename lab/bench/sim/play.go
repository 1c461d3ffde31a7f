package sim

import (
	"encoding/base64"
	"fmt"
	"hash/fnv"
	"reflect"
	"slices"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// atBirth sets the values that the API server allocates for a new object.
func atBirth(u *unstructured.Unstructured) {
	switch u.GetKind() {
	case "Namespace":
		set(u, []any{"kubernetes"}, "spec", "finalizers")
		set(u, "Active", "status", "phase")
	case "Service":
		allocate(u)
	case "Job":
		identify(u)
	case "PersistentVolumeClaim":
		u.SetFinalizers(append(u.GetFinalizers(), inUse))
	}
}

// inUse is the finalizer of a claim that pods use. In the simulation, no pod uses a claim.
const inUse = "kubernetes.io/pvc-protection"

// release removes the finalizers that controllers would remove from a deleted object.
func release(u *unstructured.Unstructured) {
	u.SetFinalizers(slices.DeleteFunc(u.GetFinalizers(), func(f string) bool { return f == inUse }))
}

// countTemplate counts changes of a DaemonSet's pod template in the annotation that kubectl reads.
func countTemplate(u, was *unstructured.Unstructured) {
	if u.GetKind() != "DaemonSet" {
		return
	}
	n := int64(1)
	if was != nil {
		n, _ = strconv.ParseInt(was.GetAnnotations()[templateGeneration], 10, 64)
		now, _, _ := unstructured.NestedMap(u.Object, "spec", "template")
		before, _, _ := unstructured.NestedMap(was.Object, "spec", "template")
		if !reflect.DeepEqual(now, before) {
			n++
		}
	}
	set(u, strconv.FormatInt(n, 10), "metadata", "annotations", templateGeneration)
}

const templateGeneration = "deprecated.daemonset.template.generation"

func set(u *unstructured.Unstructured, value any, path ...string) {
	_ = unstructured.SetNestedField(u.Object, value, path...) // it fails only if path is not an object, which its Go type has rejected
}

func text(u *unstructured.Unstructured, path ...string) string {
	s, _, _ := unstructured.NestedString(u.Object, path...)
	return s
}

// allocate sets a Service's address. It is equal on each cluster, so that clusters share the
// object.
func allocate(u *unstructured.Unstructured) {
	if text(u, "spec", "type") == "ExternalName" {
		return
	}
	address := text(u, "spec", "clusterIP")
	if address == "" {
		h := fnv.New32a()
		_, _ = h.Write([]byte(u.GetNamespace() + "/" + u.GetName())) // a hash never fails
		n := h.Sum32()
		address = fmt.Sprintf("10.96.%d.%d", n>>8&0xff, n&0xff)
	}
	set(u, address, "spec", "clusterIP")
	set(u, []any{address}, "spec", "clusterIPs")
	set(u, []any{"IPv4"}, "spec", "ipFamilies")
	set(u, "SingleStack", "spec", "ipFamilyPolicy")
}

// identify sets the selector and labels of a Job's pods.
func identify(u *unstructured.Unstructured) {
	if manual, _, _ := unstructured.NestedBool(u.Object, "spec", "manualSelector"); manual {
		return
	}
	set(u, anyUID, "spec", "selector", "matchLabels", "batch.kubernetes.io/controller-uid")
	for label, value := range map[string]string{
		"batch.kubernetes.io/controller-uid": anyUID, "controller-uid": anyUID,
		"batch.kubernetes.io/job-name": u.GetName(), "job-name": u.GetName(),
	} {
		set(u, value, "spec", "template", "metadata", "labels", label)
	}
}

// withStringData moves stringData into data, as the API server does for a written Secret.
func withStringData(complete func(runtime.Object)) func(runtime.Object) {
	return func(o runtime.Object) {
		if u, ok := o.(*unstructured.Unstructured); ok {
			plain, _, _ := unstructured.NestedStringMap(u.Object, "stringData")
			delete(u.Object, "stringData")
			for name, value := range plain {
				set(u, base64.StdEncoding.EncodeToString([]byte(value)), "data", name)
			}
		}
		complete(o)
	}
}

// players write the statuses that controllers would write, right after an object was written.
type players struct {
	mu   sync.Mutex
	jobs []played
	wake chan struct{}
}

type played struct {
	server *server
	kind   *kind
	key    key
}

func (p *players) add(job played) {
	p.mu.Lock()
	p.jobs = append(p.jobs, job)
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run writes statuses until done is closed.
func (p *players) run(done <-chan struct{}, failed func(error)) {
	for {
		p.mu.Lock()
		jobs := p.jobs
		p.jobs = nil
		p.mu.Unlock()
		for _, j := range jobs {
			if err := j.play(); err != nil {
				failed(err)
			}
		}
		if len(jobs) > 0 {
			continue
		}
		select {
		case <-done:
			return
		case <-p.wake:
		}
	}
}

// isPlayed reports whether the simulation writes the status of this kind.
func isPlayed(kind string) bool {
	switch kind {
	case "Deployment", "DaemonSet", "StatefulSet", "ReplicaSet", "Job", "CustomResourceDefinition", "PersistentVolumeClaim", "PodDisruptionBudget", "APIService":
		return true
	}
	return false
}

func (j *played) play() error {
	w := &write{k: j.kind, key: j.key, status: true, manager: "kube-controller-manager"}
	_, _, err := j.server.change(w, func(now *object) (*body, error) {
		if now == nil {
			return nil, errGone
		}
		content, err := now.anonymous()
		if err != nil {
			return nil, err
		}
		u := &unstructured.Unstructured{Object: content}
		was, _, _ := unstructured.NestedMap(content, "status")
		if is := statusOf(u); !reflect.DeepEqual(was, is) {
			content["status"] = is
			return j.server.replaced(w, now, content)
		}
		return now.body, nil
	})
	if err != nil && err != errGone { //nolint:errorlint // its own
		return fmt.Errorf("cluster %s: play the status of %s %s: %w", j.server.name, j.kind.Kind, j.key.name, err)
	}
	return nil
}

// statusOf returns the status of a healthy object.
func statusOf(u *unstructured.Unstructured) map[string]any {
	n, ok, _ := unstructured.NestedInt64(u.Object, "spec", "replicas")
	if !ok {
		n = 1
	}
	observed := func(more map[string]any) map[string]any {
		more["observedGeneration"] = u.GetGeneration()
		for name, v := range more {
			if v == int64(0) {
				delete(more, name) // zero values are omitted
			}
		}
		return more
	}
	switch u.GetKind() {
	case "Deployment":
		return observed(map[string]any{
			"replicas": n, "updatedReplicas": n, "readyReplicas": n, "availableReplicas": n,
			"conditions": []any{
				condition("Available", "MinimumReplicasAvailable", "lastUpdateTime"), condition("Progressing", "NewReplicaSetAvailable", "lastUpdateTime"),
			},
		})
	case "ReplicaSet":
		status := observed(map[string]any{"fullyLabeledReplicas": n, "readyReplicas": n, "availableReplicas": n})
		status["replicas"] = n
		return status
	case "StatefulSet":
		status := observed(map[string]any{
			"readyReplicas": n, "availableReplicas": n, "updatedReplicas": n, "currentReplicas": n,
			"currentRevision": u.GetName() + "-1", "updateRevision": u.GetName() + "-1", "collisionCount": int64(0),
		})
		status["replicas"], status["availableReplicas"] = n, n
		return status
	case "DaemonSet":
		status := observed(map[string]any{"updatedNumberScheduled": int64(3), "numberAvailable": int64(3)})
		status["currentNumberScheduled"], status["desiredNumberScheduled"], status["numberReady"], status["numberMisscheduled"] = int64(3), int64(3), int64(3), int64(0)
		return status
	case "Job":
		return map[string]any{
			"succeeded": int64(1), "startTime": anyTime, "completionTime": anyTime,
			"conditions": []any{condition("SuccessCriteriaMet", "CompletionsReached", "lastProbeTime"), condition("Complete", "CompletionsReached", "lastProbeTime")},
		}
	case "CustomResourceDefinition":
		names, _, _ := unstructured.NestedMap(u.Object, "spec", "names")
		var stored []any
		versions, _, _ := unstructured.NestedSlice(u.Object, "spec", "versions")
		for _, v := range versions {
			if v, ok := v.(map[string]any); ok && v["storage"] == true {
				stored = append(stored, v["name"])
			}
		}
		return map[string]any{
			"acceptedNames": names, "storedVersions": stored,
			"conditions": []any{condition("NamesAccepted", "NoConflicts", ""), condition("Established", "InitialNamesAccepted", "")},
		}
	case "PersistentVolumeClaim":
		return map[string]any{"phase": "Bound"}
	case "PodDisruptionBudget":
		return map[string]any{
			"observedGeneration": u.GetGeneration(), "currentHealthy": int64(3), "desiredHealthy": int64(2), "disruptionsAllowed": int64(1), "expectedPods": int64(3),
		}
	case "APIService":
		return map[string]any{"conditions": []any{condition("Available", "Passed", "")}}
	}
	return nil
}

// condition returns a condition that is True, with the time in one more field.
func condition(kind, reason, more string) map[string]any {
	c := map[string]any{"type": kind, "status": "True", "reason": reason, "message": "played", "lastTransitionTime": anyTime}
	if more != "" {
		c[more] = anyTime
	}
	return c
}
