package cloneset_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	protocol "github.com/keelson-io/keelson/api/reload"
	"github.com/keelson-io/keelson/controllers/workload/base"
	"github.com/keelson-io/keelson/controllers/workload/batch"
)

// A CloneSet is updated in batches, by replacement beside the old pods, and stops at a batch that fails.
func TestBatches(t *testing.T) {
	w := newWorld(t)
	w.create(6, func(s *v1beta1.CloneSetSpec) {
		u := s.UpdateStrategy.RollingUpdate
		u.MaxSurge, u.MaxUnavailable = new(intstr.FromInt32(2)), new(intstr.FromInt32(0))
		u.Batches = &v1beta1.UpdateBatches{Sizes: []intstr.IntOrString{intstr.FromString("30%"), intstr.FromString("70%")}}
	})
	w.settled(6, 6)
	to := func(image string) {
		t.Helper()
		w.change(func(s *v1beta1.CloneSetSpec) { s.Template.Spec.Containers[0].Image = image })
	}
	waits := func(number string, reason v1beta1.BatchReason) *v1beta1.BatchStatus {
		t.Helper()
		var found *v1beta1.BatchStatus
		w.eventually(number+" "+string(reason), func(s v1beta1.CloneSetStatus) bool {
			found = s.Batches
			return found != nil && found.Batch == number && found.Reason == reason
		})
		return found
	}
	to("web:v2")
	first := waits("1/2", v1beta1.BatchApproval)
	w.settled(6, 2)
	set := w.get()
	before := set.DeepCopy()
	metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1beta1.AnnotationNextBatch, batch.Release(first, 2))
	if err := w.client.Patch(t.Context(), set, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	waits("2/2", v1beta1.BatchDone)
	w.settled(6, 6)

	w.kubelet.Lose("web:v3")
	to("web:v3")
	if is := waits("1/2", v1beta1.BatchFailed); !strings.Contains(is.Message, "web-") {
		t.Errorf("no pod is named: %s", is.Message)
	}
	to("web:v2")
	waits("2/2", v1beta1.BatchDone)
	w.settled(6, 6)
}

// containers plays the containers of all pods: each has read the version that it is asked for, and refuses
// the version "broken".
type containers struct{}

func (containers) RoundTrip(r *http.Request) (*http.Response, error) {
	version := r.Header.Get(protocol.HeaderVersion)
	out := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("secret"))}
	out.Header.Set(protocol.HeaderVersion, version)
	if version == "broken" {
		out.StatusCode = http.StatusUnprocessableEntity
	}
	return out, nil
}

// A change of configuration goes in batches without a restart. One that containers refuse stops at the first
// batch, and the way back reloads the pods of it again.
func TestReload(t *testing.T) {
	w := newWorldWith(t, func(o *base.Options) { o.ReloadTransport = containers{} })
	w.create(6, func(s *v1beta1.CloneSetSpec) {
		inPlace(s)
		s.UpdateStrategy.RollingUpdate.MaxUnavailable = new(intstr.FromInt32(2))
		s.UpdateStrategy.RollingUpdate.Batches = &v1beta1.UpdateBatches{Sizes: []intstr.IntOrString{intstr.FromString("30%"), intstr.FromString("70%")}, Auto: true}
		s.Template.Annotations = map[string]string{
			v1beta1.AnnotationReload: `{"http": {"port": 8080}}`, v1beta1.AnnotationConfigurationVersion: "a", v1beta1.AnnotationConfigurationPrefix + "x": "files of a",
		}
		s.Template.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8080}}
	})
	w.settled(6, 6)
	before := uids(w.list())
	to := func(version string) {
		t.Helper()
		w.change(func(s *v1beta1.CloneSetSpec) {
			s.Template.Annotations[v1beta1.AnnotationConfigurationVersion] = version
			s.Template.Annotations[v1beta1.AnnotationConfigurationPrefix+"x"] = "files of " + version
		})
	}
	versions := func() (reloaded, failed map[string]int) {
		t.Helper()
		reloaded, failed = map[string]int{}, map[string]int{}
		for _, p := range w.list() {
			if p.Status.ContainerStatuses[0].RestartCount != 0 {
				t.Errorf("%s was restarted", p.Name)
			}
			if version := p.Annotations[v1beta1.AnnotationConfigurationVersion]; p.Annotations[v1beta1.AnnotationConfigurationPrefix+"x"] != "files of "+version {
				t.Errorf("%s has other files than those of %s", p.Name, version)
			}
			var s v1beta1.ReloadState
			if text := p.Annotations[v1beta1.AnnotationReloadState]; text != "" {
				if err := json.Unmarshal([]byte(text), &s); err != nil {
					t.Fatal(err)
				}
			}
			switch s.Result {
			case v1beta1.Reloaded:
				reloaded[s.Version]++
			case v1beta1.ReloadNotAsked:
				t.Errorf("%s was not asked", p.Name)
			case v1beta1.ReloadFailed:
				failed[s.Version]++
				if !strings.Contains(s.Message, "422") || strings.Contains(s.Message, "secret") {
					t.Errorf("%s: %s", p.Name, s.Message)
				}
			}
		}
		if diff := cmp.Diff(before, uids(w.list())); diff != "" {
			t.Errorf("pods were replaced: %s", diff)
		}
		return reloaded, failed
	}
	done := func(s v1beta1.CloneSetStatus) bool { return s.Batches != nil && s.Batches.Reason == v1beta1.BatchDone }

	to("b")
	w.eventually("done", func(s v1beta1.CloneSetStatus) bool { return done(s) && s.UpdatedReplicas == 6 })
	w.settled(6, 6)
	if reloaded, failed := versions(); reloaded["b"] != 6 || len(failed) > 0 {
		t.Errorf("%v %v", reloaded, failed)
	}

	to("broken")
	w.eventually("stopped", func(s v1beta1.CloneSetStatus) bool {
		return s.Batches.Reason == v1beta1.BatchFailed && s.Batches.Failed == 2 && s.Batches.Batch == "1/2"
	})
	if reloaded, failed := versions(); reloaded["b"] != 4 || failed["broken"] != 2 {
		t.Errorf("%v %v", reloaded, failed)
	}

	to("b")
	w.eventually("taken back", func(s v1beta1.CloneSetStatus) bool { return done(s) && s.UpdatedReplicas == 6 })
	w.settled(6, 6)
	if reloaded, failed := versions(); reloaded["b"] != 6 || len(failed) > 0 {
		t.Errorf("%v %v", reloaded, failed)
	}
}
