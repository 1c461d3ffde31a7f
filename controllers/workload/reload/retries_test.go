package reload_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/reload"
)

// An update of an image and of configuration waits for the image first. A pull of minutes is no failed
// reload: the time of the reload begins when the gate opens. The batch would stop at a healthy pod.
func TestTimeBeginsWithTheGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := pod("b", time.Now())
		<-time.After(10 * time.Minute)
		p.Status.Conditions = []corev1.PodCondition{{Type: v1beta1.InPlaceUpdateReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
		of := &container{answer: func(*http.Request) (*http.Response, error) { return nil, errors.New("it is starting") }}
		time.AfterFunc(3*time.Second, func() { of.play(answer(http.StatusOK, "b")) })
		if got, _ := ask(t, reload.NewCaller(time.Now, of), p); got.Result != v1beta1.Reloaded {
			t.Errorf("%+v", got)
		}
	})
}

// A pod is changed again after an answer that shows old files, once for each such answer. A container that
// answers late must not use up all changes at once: its kubelet would see one change.
func TestRetriesNeedAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		of := &container{answer: answer(http.StatusConflict, "a")}
		caller, p := reload.NewCaller(time.Now, of), pod("b", time.Now())
		p.Annotations[v1beta1.AnnotationReload] = `{"http": {"port": 8080}, "timeoutSeconds": 1000}`
		<-time.After(5 * time.Minute)
		for range 20 { // reconciles follow each other, as each change of a pod has one
			due, err := reload.Due(p)
			if err != nil {
				t.Fatal(err)
			}
			got, err := caller.Ask(t.Context(), p, due)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if got.Patch == nil {
				continue
			}
			var change struct {
				Metadata struct{ Annotations map[string]string }
			}
			if err := json.Unmarshal(got.Patch, &change); err != nil {
				t.Fatal(err)
			}
			p.Annotations[v1beta1.AnnotationReloadState] = change.Metadata.Annotations[v1beta1.AnnotationReloadState]
		}
		var state v1beta1.ReloadState
		if err := json.Unmarshal([]byte(p.Annotations[v1beta1.AnnotationReloadState]), &state); err != nil {
			t.Fatal(err)
		}
		if int(state.Retries) > of.sent() {
			t.Errorf("the pod was changed %d times after %d answers", state.Retries, of.sent())
		}
	})
}
