package health_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/health"
	"github.com/keelson-io/keelson/differ"
)

// What CloneSets and DaemonSets of apps.kruise.io are, by their objects, as OpenKruise or
// Keelson's own controllers keep them.
func TestWorkloadHealth(t *testing.T) {
	t.Parallel()
	const (
		healthy, progressing, degraded, unknown = v1alpha1.HealthHealthy, v1alpha1.HealthProgressing, v1alpha1.HealthDegraded, v1alpha1.HealthUnknown

		meta     = "metadata: {name: a, generation: 3}"
		clone    = "{apiVersion: apps.kruise.io/v1beta1, kind: CloneSet, " + meta + ", spec: {replicas: 5, updateStrategy: {rollingUpdate: {"
		older    = "{apiVersion: apps.kruise.io/v1alpha1, kind: CloneSet, " + meta + ", spec: {replicas: 5, updateStrategy: {"
		daemon   = "{apiVersion: apps.kruise.io/v1beta1, kind: DaemonSet, " + meta + ", spec: {updateStrategy: {rollingUpdate: {"
		stateful = "{apiVersion: apps.kruise.io/v1beta1, kind: StatefulSet, " + meta + ", spec: {replicas: 5, updateStrategy: {rollingUpdate: {"
		daemonV1 = "{apiVersion: apps.kruise.io/v1alpha1, kind: DaemonSet, " + meta + ", spec: {updateStrategy: {rollingUpdate: {"
		status   = "}}}, status: {observedGeneration: 3, "
		statusV1 = "}}, status: {observedGeneration: 3, "
		all      = "replicas: 5, availableReplicas: 5, expectedUpdatedReplicas: 5, updatedReplicas: 5, updatedAvailableReplicas: 5"
		five     = "replicas: 5, availableReplicas: 5, "
		two      = five + "expectedUpdatedReplicas: 2, updatedReplicas: 2, updatedAvailableReplicas: 2}}"
		nodes    = "desiredNumberScheduled: 5, currentNumberScheduled: 5, numberAvailable: 5, "
	)
	cases := map[string]struct {
		why      string
		manifest string
		want     v1alpha1.Health
		message  string
	}{
		"Done":       {"All pods are available at the newest revision.", clone + status + all + "}}", healthy, ""},
		"Unseen":     {"Without observedGeneration the numbers may be of any generation.", clone + "}}}, status: {" + all + "}}", progressing, "its controller has not seen it yet"},
		"Old":        {"The numbers are of the previous spec.", clone + "}}}, status: {observedGeneration: 2, " + all + "}}", progressing, "its controller has not seen generation 3 yet, but 2"},
		"OldFailure": {"The new spec may repair the failure.", clone + "}}}, status: {observedGeneration: 2, conditions: [{type: FailedScale, status: 'True', reason: SpecRefused}]}}", progressing, "its controller has not seen generation 3 yet, but 2"},
		"BatchGoesOn": {
			"A batch is at its end, and the next one waits.", clone + "batches: {sizes: [2]}" + status + five + "expectedUpdatedReplicas: 2, updatedReplicas: 2, updatedAvailableReplicas: 2, batches: {batch: 1/2, reason: Approval, message: the next batch begins after}}}",
			progressing, "batch 1/2: the next batch begins after",
		},
		"BatchFails": {
			"The update is stopped, and the pods are named.", stateful + "batches: {sizes: [2]}" + status + five + "updatedReplicas: 2, batches: {batch: 1/2, reason: Failed, message: 'failed: a-4; maxFailed is 0'}}}",
			degraded, "batch 1/2: failed: a-4; maxFailed is 0",
		},
		"BatchOfAnotherController": {"A reason that is not known says nothing.", clone + "batches: {sizes: [2]}" + status + all + ", batches: {batch: 1/2, reason: Elsewhere, message: a}}}", unknown, "batch 1/2: a (reason Elsewhere is not known)"},
		"BatchAtAPartition":        {"The partition of the spec is the end for now.", clone + "partition: 3, batches: {sizes: [2]}" + status + five + "expectedUpdatedReplicas: 2, updatedReplicas: 2, updatedAvailableReplicas: 2, batches: {batch: 2/2, reason: Partition}}}", healthy, "2 of 5 pods updated: partition 3"},
		"BatchesDone":              {"All are updated.", clone + "batches: {sizes: [2]}" + status + all + ", batches: {batch: 2/2, reason: Done, message: all}}}", healthy, ""},
		"BatchesGone":              {"A status of batches that git no longer wants is old.", clone + status + all + ", batches: {batch: 1/2, reason: Failed}}}", healthy, ""},
		"Updates":                  {"Pods are still to be updated.", clone + status + five + "expectedUpdatedReplicas: 5, updatedReplicas: 3, updatedAvailableReplicas: 3}}", progressing, "3 of 5 pods updated"},
		"ToItsPartition": {
			"The partition leaves 3 of 5 pods on the old revision.", clone + "partition: 3" + status + five + "expectedUpdatedReplicas: 2, updatedReplicas: 1, updatedAvailableReplicas: 1}}",
			progressing, "1 of 5 pods updated, 2 are to be: partition 3",
		},
		"AtItsPartition":         {"All pods up to the partition are updated, and the message names the partition.", clone + "partition: 3" + status + two, healthy, "2 of 5 pods updated: partition 3"},
		"AtAPercentage":          {"The partition is shown as it was written.", clone + "partition: 60%" + status + two, healthy, "2 of 5 pods updated: partition 60%"},
		"AtItsPartitionV1alpha1": {"v1alpha1 has the partition in another field.", older + "partition: 3" + statusV1 + two, healthy, "2 of 5 pods updated: partition 3"},
		"BeyondNoPartition":      {"All pods were updated before the partition was raised, and all have the same revision.", clone + "partition: 3" + status + five + "expectedUpdatedReplicas: 2, updatedReplicas: 5, updatedAvailableReplicas: 5, currentRevision: a-1, updateRevision: a-1}}", healthy, ""},
		"GoesBack": {
			"The partition was raised, so pods return to the old revision.", clone + "partition: 3" + status + five + "expectedUpdatedReplicas: 2, updatedReplicas: 4, updatedAvailableReplicas: 4, currentRevision: a-1, updateRevision: a-2}}",
			progressing, "4 of 5 pods updated, 2 are to be: partition 3: the others go back to revision a-1",
		},
		"Stateful":                {"All pods are available at the newest revision.", stateful + status + five + "updatedReplicas: 5}}", healthy, ""},
		"StatefulUpdates":         {"Pods are still to be updated.", stateful + "partition: 2" + status + five + "updatedReplicas: 1}}", progressing, "1 of 5 pods updated, 3 are to be: partition 2"},
		"StatefulAtItsPartition":  {"All pods from the partition on are updated.", stateful + "partition: 2" + status + five + "updatedReplicas: 3}}", healthy, "3 of 5 pods updated: partition 2"},
		"StatefulDoesNotGoBack":   {"The partition was raised, and that returns no pod of a StatefulSet.", stateful + "partition: 3" + status + five + "updatedReplicas: 4, currentRevision: a-1, updateRevision: a-2}}", healthy, "4 of 5 pods updated: partition 3"},
		"StatefulPaused":          {"An update waits that was paused.", stateful + "paused: true" + status + five + "updatedReplicas: 3}}", progressing, "paused: 3 of 5 pods updated"},
		"StatefulUnready":         {"An updated pod does not serve yet.", stateful + status + "replicas: 5, availableReplicas: 4, updatedReplicas: 5}}", progressing, "4 of 5 pods are available"},
		"StatefulTooMany":         {"Pods of ordinals that are not wanted are still there.", stateful + status + "replicas: 6, availableReplicas: 6, updatedReplicas: 6}}", progressing, "6 pods, and 5 are wanted"},
		"StatefulNoPod":           {"A pod can't be created.", stateful + status + "replicas: 4, conditions: [{type: FailedCreatePod, status: 'True', message: no quota}]}}", degraded, "no quota"},
		"StatefulNoUpdate":        {"A pod can't be updated.", stateful + status + five + "conditions: [{type: FailedUpdatePod, status: 'True', reason: SpecRefused, message: why}]}}", degraded, "SpecRefused: why"},
		"NoExpectation":           {"Without expectedUpdatedReplicas, the spec gives the number of pods to update.", clone + "partition: 2" + status + five + "updatedReplicas: 2, updatedAvailableReplicas: 2}}", progressing, "2 of 5 pods updated, 3 are to be: partition 2"},
		"NoExpectationPercentage": {"Below 100 % at least one pod is updated.", clone + "partition: 99%" + status + five + "}}", progressing, "0 of 5 pods updated, 1 are to be: partition 99%"},
		"NothingExpected":         {"At 100 % no pod is updated.", clone + "partition: 100%" + status + five + "}}", healthy, "0 of 5 pods updated: partition 100%"},
		"UpdatedNotAvailable":     {"An updated pod is not available.", clone + status + "replicas: 5, availableReplicas: 4, expectedUpdatedReplicas: 5, updatedReplicas: 5, updatedAvailableReplicas: 4}}", progressing, "4 of 5 updated pods are available"},
		"OldNotAvailable":         {"A pod of the old revision is not available.", clone + "partition: 3" + status + "replicas: 5, availableReplicas: 4, expectedUpdatedReplicas: 2, updatedReplicas: 2, updatedAvailableReplicas: 2}}", progressing, "4 of 5 pods are available"},
		"Scales":                  {"Pods are missing.", clone + status + "replicas: 3, availableReplicas: 3, expectedUpdatedReplicas: 5, updatedReplicas: 3, updatedAvailableReplicas: 3}}", progressing, "3 of 5 pods exist"},
		"ScalesDown":              {"The CloneSet has more pods than wanted.", clone + status + "replicas: 6, availableReplicas: 6, expectedUpdatedReplicas: 5, updatedReplicas: 6, updatedAvailableReplicas: 6}}", progressing, "6 pods, and 5 are wanted"},
		"OneByDefault":            {"replicas is 1 by default.", "{apiVersion: apps.kruise.io/v1beta1, kind: CloneSet, " + meta + ", spec: {}, status: {observedGeneration: 3, replicas: 0}}", progressing, "0 of 1 pods exist"},
		"NoReplicas":              {"No pods are wanted, and none exist.", "{apiVersion: apps.kruise.io/v1beta1, kind: CloneSet, " + meta + ", spec: {replicas: 0}, status: {observedGeneration: 3, replicas: 0}}", healthy, ""},
		"Paused":                  {"The update is paused before its end. A paused Deployment is not healthy, either.", clone + "paused: true" + status + five + "expectedUpdatedReplicas: 5, updatedReplicas: 2, updatedAvailableReplicas: 2}}", progressing, "paused: 2 of 5 pods updated"},
		"PausedV1alpha1":          {"v1alpha1 has paused in another field.", older + "paused: true" + statusV1 + five + "expectedUpdatedReplicas: 5, updatedReplicas: 2, updatedAvailableReplicas: 2}}", progressing, "paused: 2 of 5 pods updated"},
		"PausedDone":              {"The update was complete before the pause.", clone + "paused: true" + status + all + "}}", healthy, ""},
		"Deadline":                {"After its deadline, an update is not expected to finish.", clone + status + five + "expectedUpdatedReplicas: 5, updatedReplicas: 1, conditions: [{type: Progressing, status: 'False', reason: ProgressDeadlineExceeded, message: late}]}}", degraded, "ProgressDeadlineExceeded: late"},
		"StillProgressing":        {"A condition that is true is no failure.", clone + status + five + "expectedUpdatedReplicas: 5, updatedReplicas: 1, updatedAvailableReplicas: 1, conditions: [{type: Progressing, status: 'True', reason: CloneSetUpdated}]}}", progressing, "1 of 5 pods updated"},
		"Refused":                 {"The controller refuses the spec, so the numbers do not count.", clone + status + all + ", conditions: [{type: FailedScale, status: 'True', reason: SpecRefused, message: 'spec.volumeClaimTemplates: nothing is done'}]}}", degraded, "SpecRefused: spec.volumeClaimTemplates: nothing is done"},
		"FailedUpdate":            {"OpenKruise reports a failure with the condition FailedUpdate.", clone + status + all + ", conditions: [{type: FailedUpdate, status: 'True', message: quota}]}}", degraded, "quota"},
		"FailedOnce":              {"The condition is False, so the failure is over.", clone + status + all + ", conditions: [{type: FailedScale, status: 'False', message: quota}]}}", healthy, ""},
		"Malformed":               {"A spec that can't be read is not healthy.", clone + "partition: some" + status + all + "}}", unknown, `the partition "some": invalid value for IntOrString: invalid type: string is not a percentage`},
		"Deleted":                 {"Components that depend on an object can't use it while it is being deleted.", "{apiVersion: apps.kruise.io/v1beta1, kind: CloneSet, metadata: {name: a, generation: 3, deletionTimestamp: '2026-01-01T00:00:00Z'}, spec: {replicas: 5}, status: {observedGeneration: 3, " + all + "}}", progressing, "it is being deleted; its finalizers: []"},
		"OtherGroup":              {"The rules do not apply to a CloneSet of another API group.", "{apiVersion: x.io/v1, kind: CloneSet, " + meta + ", spec: {replicas: 5}}", healthy, ""},

		"DaemonDone":           {"All nodes have the newest revision.", daemon + status + nodes + "updatedNumberScheduled: 5}}", healthy, ""},
		"DaemonUnseen":         {"No controller has seen the DaemonSet, so 0 nodes is not a result.", daemon + "}}}}", progressing, "its controller has not seen it yet"},
		"DaemonNoNodes":        {"No node should run it.", daemon + status + "desiredNumberScheduled: 0}}", healthy, ""},
		"DaemonUpdates":        {"Nodes remain to be updated.", daemon + status + nodes + "updatedNumberScheduled: 3}}", progressing, "3 of 5 pods updated"},
		"DaemonToItsPartition": {"A percentage is rounded up: 50 % of 5 stay 3.", daemon + "partition: 50%" + status + nodes + "updatedNumberScheduled: 1}}", progressing, "1 of 5 pods updated, 2 are to be: partition 50%"},
		"DaemonAtItsPartition": {"All nodes up to the partition are updated.", daemon + "partition: 3" + status + nodes + "updatedNumberScheduled: 2}}", healthy, "2 of 5 pods updated: partition 3"},
		"DaemonPartitionOfAll": {"The partition is larger than the number of nodes.", daemon + "partition: 9" + status + nodes + "updatedNumberScheduled: 0}}", healthy, "0 of 5 pods updated: partition 9"},
		"DaemonV1alpha1":       {"v1alpha1 has its partition in the same place.", daemonV1 + "partition: 3" + status + nodes + "updatedNumberScheduled: 2}}", healthy, "2 of 5 pods updated: partition 3"},
		"DaemonPaused":         {"The update is paused before its end.", daemon + "paused: true" + status + nodes + "updatedNumberScheduled: 2}}", progressing, "paused: 2 of 5 pods updated"},
		"DaemonMissing":        {"A node has no pod.", daemon + status + "desiredNumberScheduled: 5, currentNumberScheduled: 4, numberAvailable: 4, updatedNumberScheduled: 4}}", progressing, "4 of 5 pods exist"},
		"DaemonUnavailable":    {"A pod is not available.", daemon + status + "desiredNumberScheduled: 5, currentNumberScheduled: 5, numberAvailable: 4, updatedNumberScheduled: 5}}", progressing, "4 of 5 pods are available"},
		"CloneOnDelete":        {"With OnDelete, an old pod is updated only after a person deletes it.", "{apiVersion: apps.kruise.io/v1beta1, kind: CloneSet, " + meta + ", spec: {replicas: 5, updateStrategy: {type: OnDelete}}, status: {observedGeneration: 3, " + five + "expectedUpdatedReplicas: 5, updatedReplicas: 1, updatedAvailableReplicas: 1}}", healthy, ""},
		"DaemonOnDelete":       {"With OnDelete, an old pod is updated only after a person deletes it.", "{apiVersion: apps.kruise.io/v1beta1, kind: DaemonSet, " + meta + ", spec: {updateStrategy: {type: OnDelete}}, status: {observedGeneration: 3, " + nodes + "updatedNumberScheduled: 0}}", healthy, ""},
		"DaemonOnDeleteDown":   {"With OnDelete, unavailable pods still count.", "{apiVersion: apps.kruise.io/v1beta1, kind: DaemonSet, " + meta + ", spec: {updateStrategy: {type: OnDelete}}, status: {observedGeneration: 3, desiredNumberScheduled: 5, currentNumberScheduled: 5, numberAvailable: 1}}", progressing, "1 of 5 pods are available"},
		"DaemonSelector": {
			"The number of selected nodes is unknown, and an unknown result is not healthy.", daemon + "selector: {matchLabels: {canary: 'true'}}" + status + nodes + "updatedNumberScheduled: 1}}", unknown,
			"1 of 5 pods updated; how many nodes its updateStrategy.rollingUpdate.selector chooses does not show: a rule under health: in component.yaml can define when it is done",
		},
		"DaemonSelectorGoesOn": {
			"The condition Progressing tells how many nodes are selected.", daemon + "selector: {matchLabels: {canary: 'true'}}" + status + nodes + "updatedNumberScheduled: 1, conditions: [{type: Progressing, status: 'True', reason: DaemonSetUpdated, message: 1 of 2 nodes}]}}", progressing, "1 of 2 nodes",
		},
		"DaemonSelectorAll": {
			"All selected nodes have the new revision.", daemon + "selector: {matchLabels: {canary: 'true'}}" + status + nodes + "updatedNumberScheduled: 2, conditions: [{type: Progressing, status: 'True', reason: ProgressPartitionAvailable, message: 2 of 2 nodes}]}}", healthy, "2 of 2 nodes",
		},
		"DaemonSelectorDown": {
			"All selected nodes have the new revision, and one pod is not available.", daemon + "selector: {matchLabels: {canary: 'true'}}" + status + "desiredNumberScheduled: 5, currentNumberScheduled: 5, numberAvailable: 4, updatedNumberScheduled: 2, conditions: [{type: Progressing, status: 'True', reason: ProgressPartitionAvailable, message: 2 of 2 nodes}]}}", progressing, "4 of 5 pods are available",
		},
		"DaemonSelectorDone":      {"The selector selects all nodes.", daemon + "selector: {matchLabels: {canary: 'true'}}" + status + nodes + "updatedNumberScheduled: 5}}", healthy, ""},
		"DaemonProgressive":       {"With partitioned scaling, two nodes stay without a pod.", "{apiVersion: apps.kruise.io/v1beta1, kind: DaemonSet, " + meta + ", spec: {scaleStrategy: {partitionedScaling: true}, updateStrategy: {rollingUpdate: {partition: 2" + status + "desiredNumberScheduled: 5, currentNumberScheduled: 3, numberAvailable: 3, updatedNumberScheduled: 3}}", healthy, "3 of 5 pods updated: partition 2"},
		"DaemonProgressiveBegins": {"The pod of the third node is missing.", "{apiVersion: apps.kruise.io/v1beta1, kind: DaemonSet, " + meta + ", spec: {scaleStrategy: {partitionedScaling: true}, updateStrategy: {rollingUpdate: {partition: 2" + status + "desiredNumberScheduled: 5, currentNumberScheduled: 2, numberAvailable: 2, updatedNumberScheduled: 2}}", progressing, "2 of 3 pods exist"},
		"DaemonProgressiveV1alpha1": {
			"v1alpha1 sets partitioned scaling by an annotation.", "{apiVersion: apps.kruise.io/v1alpha1, kind: DaemonSet, metadata: {name: a, generation: 3, annotations: {daemonset.kruise.io/progressive-create-pod: 'true'}}, spec: {updateStrategy: {rollingUpdate: {partition: 2" + status + "desiredNumberScheduled: 5, currentNumberScheduled: 3, numberAvailable: 3, updatedNumberScheduled: 3}}",
			healthy, "3 of 5 pods updated: partition 2",
		},
		"DaemonDeadline": {"ProgressDeadlineExceeded means the same as for a CloneSet.", daemon + status + nodes + "updatedNumberScheduled: 1, conditions: [{type: Progressing, status: 'False', reason: ProgressDeadlineExceeded, message: late}]}}", degraded, "ProgressDeadlineExceeded: late"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := healthOf(t, health.Rules{}, c.manifest)
			if got.Health != c.want || got.Message != c.message {
				t.Errorf("%s\nIt is %s: %q\nwant %s: %q", c.why, got.Health, got.Message, c.want, c.message)
			}
		})
	}
}

// The fields that are read are those of the types: each is changed on the way through an
// update, and changes what is said.
func TestWorkloadHealthOfTypes(t *testing.T) {
	t.Parallel()
	three := intstr.FromInt32(3)
	set := &v1beta1.CloneSet{
		TypeMeta: metav1.TypeMeta{APIVersion: v1beta1.GroupVersion.String(), Kind: "CloneSet"}, ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Generation: 2},
		Spec: v1beta1.CloneSetSpec{Replicas: new(int32(5)), UpdateStrategy: v1beta1.CloneSetUpdateStrategy{RollingUpdate: &v1beta1.CloneSetRollingUpdateStrategy{Partition: &three}}},
	}
	daemon := &v1beta1.DaemonSet{
		TypeMeta: metav1.TypeMeta{APIVersion: v1beta1.GroupVersion.String(), Kind: "DaemonSet"}, ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "agent", Generation: 2},
		Spec: v1beta1.DaemonSetSpec{UpdateStrategy: v1beta1.DaemonSetUpdateStrategy{RollingUpdate: &v1beta1.DaemonSetRollingUpdateStrategy{Partition: &three}}},
	}
	var got []string
	look := func(o runtime.Object, name string) {
		t.Helper()
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			t.Fatal(err)
		}
		id := differ.ID{Group: "apps.kruise.io", Kind: o.GetObjectKind().GroupVersionKind().Kind, Namespace: "shop", Name: name}
		h := health.Rules{}.Of(id, content)
		got = append(got, string(h.Health)+": "+h.Message)
		if h.ID != id {
			t.Errorf("it is about %s", h.ID)
		}
	}
	for _, step := range []func(*v1beta1.CloneSet){
		func(*v1beta1.CloneSet) {},
		func(s *v1beta1.CloneSet) {
			s.Status = v1beta1.CloneSetStatus{ObservedGeneration: 2, ExpectedUpdatedReplicas: 2, Replicas: 5, AvailableReplicas: 5}
		},
		func(s *v1beta1.CloneSet) { s.Spec.UpdateStrategy.RollingUpdate.Paused = true },
		func(s *v1beta1.CloneSet) {
			s.Spec.UpdateStrategy.RollingUpdate.Paused = false
			s.Status.UpdatedReplicas, s.Status.UpdatedAvailableReplicas = 2, 1
		},
		func(s *v1beta1.CloneSet) { s.Status.UpdatedAvailableReplicas = 2 },
		func(s *v1beta1.CloneSet) {
			s.Spec.UpdateStrategy.RollingUpdate.Partition, s.Status.ExpectedUpdatedReplicas = nil, 5
		},
		func(s *v1beta1.CloneSet) { s.Status.UpdatedReplicas, s.Status.UpdatedAvailableReplicas = 5, 5 },
		func(s *v1beta1.CloneSet) {
			s.Status.Conditions = []v1beta1.CloneSetCondition{{Type: v1beta1.CloneSetFailedScale, Status: corev1.ConditionTrue, Reason: "SpecRefused", Message: "no"}}
		},
	} {
		step(set)
		look(set, "web")
	}
	for _, step := range []func(*v1beta1.DaemonSet){
		func(*v1beta1.DaemonSet) {},
		func(s *v1beta1.DaemonSet) {
			s.Status = v1beta1.DaemonSetStatus{ObservedGeneration: 2, DesiredNumberScheduled: 5, CurrentNumberScheduled: 5, NumberAvailable: 4, UpdatedNumberScheduled: 1}
		},
		func(s *v1beta1.DaemonSet) { s.Spec.UpdateStrategy.RollingUpdate.Paused = new(true) },
		func(s *v1beta1.DaemonSet) {
			s.Spec.UpdateStrategy.RollingUpdate.Paused, s.Status.UpdatedNumberScheduled = new(false), 2
		},
		func(s *v1beta1.DaemonSet) { s.Status.NumberAvailable = 5 },
		func(s *v1beta1.DaemonSet) {
			s.Spec.ScaleStrategy, s.Status.CurrentNumberScheduled = &v1beta1.DaemonSetScaleStrategy{PartitionedScaling: true}, 2
		},
		func(s *v1beta1.DaemonSet) { s.Spec.ScaleStrategy = nil },
		func(s *v1beta1.DaemonSet) {
			s.Spec.UpdateStrategy.Type, s.Status.CurrentNumberScheduled = v1beta1.DaemonSetOnDelete, 5
		},
	} {
		step(daemon)
		look(daemon, "agent")
	}
	want := []string{
		"Progressing: its controller has not seen it yet",
		"Progressing: 0 of 5 pods updated, 2 are to be: partition 3",
		"Progressing: paused: 0 of 5 pods updated",
		"Progressing: 1 of 2 updated pods are available",
		"Healthy: 2 of 5 pods updated: partition 3",
		"Progressing: 2 of 5 pods updated",
		"Healthy: ",
		"Degraded: SpecRefused: no",
		"Progressing: its controller has not seen it yet",
		"Progressing: 1 of 5 pods updated, 2 are to be: partition 3",
		"Progressing: paused: 1 of 5 pods updated",
		"Progressing: 4 of 5 pods are available",
		"Healthy: 2 of 5 pods updated: partition 3",
		"Healthy: 2 of 5 pods updated: partition 3",
		"Progressing: 2 of 5 pods exist",
		"Healthy: ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// A component's own rules come before what is known of a kind, and what is healthy by
// them has nothing to say.
func TestWorkloadHealthByRule(t *testing.T) {
	t.Parallel()
	rules, err := health.NewRules([]v1alpha1.HealthRule{{
		Match:   v1alpha1.ObjectMatch{Group: "apps.kruise.io", Kinds: []string{"DaemonSet"}},
		Current: "object.status.updatedNumberScheduled == 1", Because: "it selects one node",
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := healthOf(t, rules, "{apiVersion: apps.kruise.io/v1beta1, kind: DaemonSet, metadata: {name: a, generation: 1}, spec: {updateStrategy: {rollingUpdate: {selector: {matchLabels: {canary: 'true'}}}}}, "+
		"status: {observedGeneration: 1, desiredNumberScheduled: 5, currentNumberScheduled: 5, numberAvailable: 5, updatedNumberScheduled: 1}}")
	if got.Health != v1alpha1.HealthHealthy || got.Message != "" {
		t.Errorf("it is %s: %q", got.Health, got.Message)
	}
}

// An update in batches that waits as its spec wants it is not late, as long as the workload serves.
func TestWaits(t *testing.T) {
	t.Parallel()
	for why, c := range map[string]struct {
		available, reason string
		want              bool
	}{
		"It waits for a release, and all pods serve.":     {"5", "Approval", true},
		"It waits for a release, and pods are down.":      {"4", "Approval", false},
		"It is paused, and all pods serve.":               {"5", "Paused", true},
		"Pods are updated, which must not take too long.": {"5", "Updating", false},
	} {
		r := healthOf(t, health.Rules{}, "{apiVersion: apps.kruise.io/v1beta1, kind: CloneSet, metadata: {name: a, generation: 3}, spec: {replicas: 5, updateStrategy: {rollingUpdate: {batches: {sizes: [2]}}}}, "+
			"status: {observedGeneration: 3, replicas: 5, updatedReplicas: 2, availableReplicas: "+c.available+", batches: {batch: 1/2, message: m, reason: "+c.reason+"}}}")
		if r.Health != v1alpha1.HealthProgressing || health.Waits([]health.Result{{Health: v1alpha1.HealthHealthy}, r}) != c.want {
			t.Errorf("%s %+v", why, r)
		}
	}
	if health.Waits(nil) || health.Waits([]health.Result{{Health: v1alpha1.HealthProgressing}}) {
		t.Error("nothing waits")
	}
}

// Of a whole in which all is healthy the first note is told, and what is worse goes
// before it.
func TestWorstTellsWhereItStands(t *testing.T) {
	t.Parallel()
	at := func(name string, h v1alpha1.Health, message string) health.Result {
		return health.Result{ID: differ.ID{Kind: "X", Name: name}, Health: h, Message: message}
	}
	plain, note, later := at("a", v1alpha1.HealthHealthy, ""), at("b", v1alpha1.HealthHealthy, "partition 3"), at("c", v1alpha1.HealthHealthy, "partition 4")
	for name, c := range map[string]struct {
		why     string
		objects []health.Result
		want    string
	}{
		"None":  {"There is nothing to say.", []health.Result{plain}, "Healthy "},
		"Notes": {"The first one.", []health.Result{plain, note, later}, "Healthy X b: partition 3"},
		"Worse": {"Whatever else stands somewhere.", []health.Result{note, at("d", v1alpha1.HealthProgressing, "2 of 3"), at("e", v1alpha1.HealthProgressing, "1 of 3")}, "Progressing X d: 2 of 3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			worst, message := health.Worst(c.objects)
			if got := string(worst) + " " + message; got != c.want {
				t.Errorf("%s It is %q, want %q", c.why, got, c.want)
			}
		})
	}
}
