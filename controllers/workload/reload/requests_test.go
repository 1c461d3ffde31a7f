package reload_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	"github.com/keelson-io/keelson/controllers/workload/reload"
)

// The address of a pod that has ended, or that ends, can already be that of another pod, of another team.
func TestEndedPods(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*corev1.Pod){
		"Failed":    func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
		"Succeeded": func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded },
		"Deleted":   func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) },
	} {
		p := pod("b", time.Now())
		change(p)
		if due, err := reload.Due(p); err != nil || due != nil || reload.Complete(p) {
			t.Errorf("%s: a request is due: %v %v", name, due, err)
		}
	}
}

// Pods that never answer must not take all requests of the controllers: those of other namespaces go on.
func TestSlowPodsOfANamespace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		of := &container{answer: answer(http.StatusOK, "b")}
		slow := transport(func(r *http.Request) (*http.Response, error) {
			if strings.HasPrefix(r.URL.Host, "10.6.6.") {
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
			return of.RoundTrip(r)
		})
		caller := reload.NewCaller(time.Now, slow)
		for i := range 200 {
			p := pod("b", time.Now())
			p.Namespace, p.UID, p.Status.PodIP = "hostile", types.UID(fmt.Sprint(i)), fmt.Sprintf("10.6.6.%d", i+1)
			due, err := reload.Due(p)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := caller.Ask(t.Context(), p, due); err != nil {
				t.Fatal(err)
			}
		}
		begin := time.Now()
		if got, _ := ask(t, caller, pod("b", time.Now())); got.Result != v1beta1.Reloaded || time.Since(begin) > time.Second {
			t.Errorf("after %s: %+v", time.Since(begin), got)
		}
		<-time.After(time.Minute) // the requests end
	})
}

// A pod gets one request at a time. With two, it could answer for the version that it runs, and then read the
// files for a version that is no longer wanted.
func TestOneRequestAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inFlight, most := 0, 0
		caller := reload.NewCaller(time.Now, transport(func(r *http.Request) (*http.Response, error) {
			inFlight++
			most = max(most, inFlight)
			defer func() { inFlight-- }()
			<-time.After(3 * time.Second)
			return answer(http.StatusOK, r.Header.Get("Keelson-Configuration-Version"))(r)
		}))
		b := pod("b", time.Now())
		due, err := reload.Due(b)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := caller.Ask(t.Context(), b, due); err != nil {
			t.Fatal(err)
		}
		if got, _ := ask(t, caller, pod("a", time.Now())); got.Result != v1beta1.Reloaded || got.Version != "a" || most != 1 {
			t.Errorf("%+v, %d requests at once", got, most)
		}
	})
}

// A text that a container chose is in no event and no annotation, unless it is a version.
func TestTextOfAContainer(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"<!channel> see http://example.com", "pass\u202eword", strings.Repeat("a", 200), "a\tb"} {
		synctest.Test(t, func(t *testing.T) {
			got, _ := ask(t, reload.NewCaller(time.Now, &container{answer: answer(http.StatusConflict, text)}), pod("b", time.Now()))
			if got.Result != v1beta1.ReloadFailed || !strings.HasSuffix(got.Message, "whose text is no version") {
				t.Errorf("%+v", got)
			}
		})
	}
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// An edited method is an error that says what to do: the pod waits until then.
func TestEditedMethod(t *testing.T) {
	t.Parallel()
	p := pod("b", time.Now())
	p.Annotations[v1beta1.AnnotationReload] = "{"
	if _, err := reload.Due(p); err == nil || !strings.Contains(err.Error(), "default/web-0") || !strings.Contains(err.Error(), "delete the pod") {
		t.Error(err)
	}
}

// A team can edit the annotations of its pods. No text there ends the controllers of all teams.
func TestEditedState(t *testing.T) {
	t.Parallel()
	for _, state := range []string{
		`{"version": "b", "since": "2000-01-01T00:00:00Z", "retries": -1}`, `{"version": "b", "retries": -2147483648}`, `{"version": "b", "retries": 2147483647}`,
		`{"version": "b", "since": "9999-01-01T00:00:00Z"}`, `{"version": "b", "since": "0001-01-01T00:00:00Z"}`, `{"version": "b", "since": null}`, `{}`, `null`,
	} {
		synctest.Test(t, func(t *testing.T) {
			p := pod("b", time.Now())
			p.Annotations[v1beta1.AnnotationReloadState] = state
			p.Annotations[v1beta1.AnnotationReload] = `{"http": {"port": 8080}, "timeoutSeconds": 3600}`
			caller := reload.NewCaller(time.Now, &container{answer: answer(http.StatusConflict, "a")})
			for range 5 {
				<-time.After(time.Minute)
				due, err := reload.Due(p)
				if err != nil || due == nil {
					t.Fatalf("%s: %v", state, err)
				}
				if _, err := caller.Ask(t.Context(), p, due); err != nil {
					t.Errorf("%s: %v", state, err)
				}
			}
		})
	}
}
