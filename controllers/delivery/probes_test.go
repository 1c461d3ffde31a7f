package delivery_test

import (
	"context"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// collectsProbes does the garbage collector's part of deletions of what probes made.
func (tr *train) collectsProbes() {
	ctx, stop := context.WithCancel(tr.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			for _, api := range tr.api {
				list, err := api.Resource(configMaps).Namespace(tr.name).List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.LabelProbe})
				for i := 0; err == nil && i < len(list.Items); i++ {
					if list.Items[i].GetDeletionTimestamp() != nil {
						_, _ = api.Resource(configMaps).Namespace(tr.name).Patch(ctx, list.Items[i].GetName(), types.MergePatchType,
							[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
					}
				}
			}
			return false, nil
		})
	}()
	tr.t.Cleanup(func() { stop(); <-done })
}

func (tr *train) probed(cluster string) v1alpha1.ProbeResultStatus {
	var r v1alpha1.ProbeResult
	_ = tr.hub.Get(context.WithoutCancel(tr.t.Context()), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: cluster + ".sound"}, &r)
	return r.Status
}

// check is how far the check of the testing stage is.
func (tr *train) check() v1alpha1.RolloutCheck {
	for _, stage := range tr.rollout().Stages {
		if stage.Name == "testing" && len(stage.Checks) > 0 {
			return stage.Checks[0]
		}
	}
	return v1alpha1.RolloutCheck{}
}

// A check of a probe opens the way out of a stage after as many runs as it asks for, that
// began when the stage had the change; the first of them begins at once. A run that fails
// then pauses the rollout, and the next stage keeps what it has.
func TestProbeCheck(t *testing.T) {
	tr := newTrain(t)
	tr.collectsProbes()
	tr.write("pipelines/standard.yaml", strings.Replace(standard, "matchLabels: {stage: testing}}",
		"matchLabels: {stage: testing}}, after: [{name: sound, probe: {name: sound, runs: 2}}]", 1))
	tr.write("probes/sound.yaml", head+`Probe
clusterSelector: {}
namespace: CLUSTER
interval: 10s
subjects: [{name: config, custom: {template: manifests/config.yaml, upgrade: {data: {a: c}}}}]
`)
	tr.write("manifests/config.yaml", "apiVersion: v1\nkind: ConfigMap\ndata: {a: b}\n")
	tr.commit("a probe")
	tr.stops = tr.start(tr.connect)
	tester := tr.names()[0]
	tr.have("hello   ")
	since := func() (n int) {
		for _, run := range tr.probed(tester).Runs {
			if asked := tr.check().Asked; run.Outcome == v1alpha1.ProbePassed && !asked.IsZero() && run.Begun.After(asked.Time) {
				n++
			}
		}
		return n
	}
	tr.eventually("it waits", func() bool {
		return strings.Contains(tr.check().Message, "it waits for 2 runs of probe sound in a row")
	})
	tr.eventually("one has passed", func() bool { return since() == 1 })
	if got := tr.texts(); got != "hello   " {
		t.Errorf("after one run: %s", got)
	}
	tr.have("hello hello  ")
	if asked := tr.check(); since() < 2 || asked.Passed == nil {
		t.Errorf("%d runs passed since it was asked: %+v, %+v", since(), asked, tr.probed(tester))
	}

	t.Log("a change with which it fails")
	foreign := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "probe-sound-config", "namespace": tr.name},
	}}
	api := tr.api[tester].Resource(configMaps).Namespace(tr.name)
	tr.eventually("a foreign ConfigMap has the name of the probe's object", func() bool {
		_, err := api.Create(t.Context(), foreign, metav1.CreateOptions{})
		return err == nil
	})
	tr.release("v1.1.0", "bye")
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the rollout: %+v", tr.rollout())
			t.Logf("the probe: %+v", tr.probed(tester))
		}
	})
	tr.phase(v1alpha1.RolloutPaused, tester+": probe sound failed at ")
	if got := tr.texts(); !strings.HasPrefix(got, "bye hello") {
		t.Errorf("a run failed: %s", got)
	}
	if s := tr.probed(tester); !strings.Contains(s.Message, "config/create: ConfigMap "+tr.name+"/probe-sound-config: an object of this name is there that is not this probe's") {
		t.Errorf("the result: %+v", s)
	}
}
