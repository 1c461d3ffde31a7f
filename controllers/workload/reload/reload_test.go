package reload_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
	protocol "github.com/keelson-io/keelson/api/reload"
	"github.com/keelson-io/keelson/controllers/workload/reload"
)

// A method that can't be followed is refused, with the reason.
func TestValidate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		why    string
		method string
		change func(*corev1.PodSpec)
		want   string // part of the error; "" is none
	}{
		"Good":      {"All fields.", `{"http": {"port": 8080, "path": "/-/reload?now=1"}, "timeoutSeconds": 5}`, nil, ""},
		"Defaults":  {"Only the port has no default.", `{"http": {"port": 8080}}`, nil, ""},
		"Sidecar":   {"A container beside the program can take the request.", `{"http": {"port": 7070}}`, nil, ""},
		"NotJSON":   {"Text.", `POST /reload`, nil, "no reload method"},
		"Unknown":   {"A wish that is not known can't be followed.", `{"http": {"port": 8080}, "signal": "HUP"}`, nil, "unknown field"},
		"More":      {"Two methods.", `{"http": {"port": 8080}}{"http": {"port": 8081}}`, nil, "after the JSON"},
		"Brace":     {"A brace ends no object here.", `{"http": {"port": 8080}}}`, nil, "after the JSON"},
		"Nothing":   {"No annotation means that a container watches.", `{}`, nil, "http is missing"},
		"Null":      {"The same.", `null`, nil, "http is missing"},
		"Port":      {"No port.", `{"http": {"port": 65536}}`, nil, "http.port"},
		"Other":     {"A port that nothing in the pod listens to.", `{"http": {"port": 9090}}`, nil, "no container declares TCP port 9090"},
		"UDP":       {"HTTP is TCP.", `{"http": {"port": 53}}`, nil, "no container declares"},
		"Path":      {"A path is no URL.", `{"http": {"port": 8080, "path": "http://example.com/"}}`, nil, "http.path"},
		"Authority": {"Two slashes would begin a host.", `{"http": {"port": 8080, "path": "//example.com/"}}`, nil, "http.path"},
		"Long":      {"Paths are bounded.", `{"http": {"port": 8080, "path": "/` + strings.Repeat("a", 2000) + `"}}`, nil, "http.path"},
		"Timeout":   {"No time is no time.", `{"http": {"port": 8080}, "timeoutSeconds": 0}`, nil, "timeoutSeconds"},
		"Forever":   {"An hour is enough.", `{"http": {"port": 8080}, "timeoutSeconds": 3601}`, nil, "timeoutSeconds"},
		"Host":      {"The address of the node is that of other programs, too.", `{"http": {"port": 8080}}`, func(s *corev1.PodSpec) { s.HostNetwork = true }, "hostNetwork"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			template := &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1beta1.AnnotationReload: c.method}}, Spec: corev1.PodSpec{
				Containers:     []corev1.Container{{Name: "web", Ports: []corev1.ContainerPort{{ContainerPort: 8080}, {ContainerPort: 53, Protocol: corev1.ProtocolUDP}}}},
				InitContainers: []corev1.Container{{Name: "agent", RestartPolicy: new(corev1.ContainerRestartPolicyAlways), Ports: []corev1.ContainerPort{{ContainerPort: 7070, Protocol: corev1.ProtocolTCP}}}},
			}}
			if c.change != nil {
				c.change(&template.Spec)
			}
			got := reload.Validate(field.NewPath("spec", "template"), template)
			if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0].Error(), c.want)) {
				t.Errorf("%s got %v", c.why, got)
			}
		})
	}
}

// A template can't say that a reload was done, and its version is one that a header and a message can hold.
// An empty version would be that of each answer without a version.
func TestValidateAnnotations(t *testing.T) {
	t.Parallel()
	for want, annotations := range map[string]map[string]string{
		"the controller writes it": {v1beta1.AnnotationReloadState: `{"version": "b", "result": "Reloaded"}`},
		"1 to 128 letters":         {v1beta1.AnnotationConfigurationVersion: ""},
		"letters, digits":          {v1beta1.AnnotationConfigurationVersion: "a\r\nb"},
		"letters, digits, or":      {v1beta1.AnnotationConfigurationVersion: " a"},
		"characters of ._-":        {v1beta1.AnnotationConfigurationVersion: strings.Repeat("a", 129)},
	} {
		got := reload.Validate(field.NewPath("template"), &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}})
		if len(got) != 1 || !strings.Contains(got[0].Error(), want) {
			t.Errorf("%v: %v", annotations, got)
		}
	}
}

// pod returns a pod that has got a version at a time.
func pod(version string, since time.Time) *corev1.Pod {
	text, _ := json.Marshal(v1beta1.ReloadState{Version: version, Since: metav1.NewTime(since)}) // it can be encoded
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-0", Namespace: "default", UID: "u", Annotations: map[string]string{
			v1beta1.AnnotationReload: `{"http": {"port": 8080}, "timeoutSeconds": 10}`, v1beta1.AnnotationReloadState: string(text),
			v1beta1.AnnotationConfigurationVersion: version,
		}},
		Status: corev1.PodStatus{PodIP: "10.1.2.3"},
	}
}

// container plays the containers of pods: it answers each request as answer says.
type container struct {
	mu       sync.Mutex
	requests []*http.Request
	answer   func(*http.Request) (*http.Response, error)
}

func (c *container) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests = append(c.requests, r)
	return c.answer(r)
}

func (c *container) sent() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.requests)
}

func (c *container) play(answer func(*http.Request) (*http.Response, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = answer
}

func answer(code int, version string) func(*http.Request) (*http.Response, error) {
	return func(*http.Request) (*http.Response, error) {
		r := &http.Response{StatusCode: code, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(""))}
		if version != "" {
			r.Header.Set(protocol.HeaderVersion, version)
		}
		return r, nil
	}
}

// ask asks until there is a patch, and returns the state in it.
func ask(t *testing.T, caller *reload.Caller, p *corev1.Pod) (state v1beta1.ReloadState, after time.Duration) {
	t.Helper()
	due, err := reload.Due(p)
	if err != nil || due == nil {
		t.Fatalf("nothing is due: %v", err)
	}
	for {
		got, err := caller.Ask(t.Context(), p, due)
		if err != nil {
			t.Fatal(err)
		}
		if got.Patch == nil && got.After > 0 {
			<-time.After(got.After)
			continue
		}
		var change struct {
			Metadata struct{ Annotations map[string]string }
		}
		if err := json.Unmarshal(got.Patch, &change); err != nil {
			t.Fatal(err)
		}
		text := change.Metadata.Annotations[v1beta1.AnnotationReloadState]
		state = v1beta1.ReloadState{}
		if err := json.Unmarshal([]byte(text), &state); err != nil {
			t.Fatal(err)
		}
		if state.Result != "" {
			if (got.Failed == "") != (state.Result == v1beta1.Reloaded) {
				t.Errorf("an event says %q of %+v", got.Failed, state)
			}
			return state, got.After
		}
		p = p.DeepCopy()
		p.Annotations[v1beta1.AnnotationReloadState] = text
		if due, err = reload.Due(p); err != nil {
			t.Fatal(err)
		}
	}
}

// A container has reloaded when it answers that it has read the version, and not before.
func TestAsk(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		why     string
		answer  func(*http.Request) (*http.Response, error)
		want    v1beta1.ReloadResult
		message string
	}{
		"Reloaded": {"It has read the version.", answer(http.StatusNoContent, "b"), v1beta1.Reloaded, ""},
		"Refused":  {"It has read the version, and can't run it.", answer(http.StatusUnprocessableEntity, "b"), v1beta1.ReloadFailed, "refused the configuration with status 422"},
		"Old":      {"It read the files before the kubelet wrote them, and never again.", answer(http.StatusOK, "a"), v1beta1.ReloadFailed, "not reloaded in 10s: the container has read version \"a\""},
		"Silent":   {"A container that does not say what it read could have read the old files.", answer(http.StatusOK, ""), v1beta1.ReloadFailed, "does not say which version"},
		"Redirect": {"The answer of another server is no answer of the pod.", func(*http.Request) (*http.Response, error) {
			r, err := answer(http.StatusFound, "")(nil)
			r.Header.Set("Location", "http://169.254.169.254/")
			return r, err
		}, v1beta1.ReloadFailed, "status 302"},
		"Lost": {"No answer, and no text of the error either.", func(*http.Request) (*http.Response, error) { return nil, http.ErrServerClosed }, v1beta1.ReloadFailed, "ended without an answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				of := &container{answer: c.answer}
				got, after := ask(t, reload.NewCaller(time.Now, of), pod("b", time.Now()))
				if got.Result != c.want || !strings.Contains(got.Message, c.message) || got.Version != "b" {
					t.Errorf("%s got %+v", c.why, got)
				}
				if (after == 0) != (c.want == v1beta1.Reloaded) {
					t.Errorf("%s asks again after %s", c.why, after)
				}
				synctest.Wait()
				if r := of.requests[0]; r.Method != http.MethodPost || r.URL.String() != "http://10.1.2.3:8080/reload" || r.Header.Get(protocol.HeaderVersion) != "b" {
					t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
				}
			})
		})
	}
}

// Requests go to the address of a pod, and to no program of this or of another machine.
func TestAddress(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*corev1.Pod){
		"None":      func(p *corev1.Pod) { p.Status.PodIP = "" },
		"Loopback":  func(p *corev1.Pod) { p.Status.PodIP = "127.0.0.1" },
		"Mapped":    func(p *corev1.Pod) { p.Status.PodIP = "::ffff:127.0.0.1" },
		"LinkLocal": func(p *corev1.Pod) { p.Status.PodIP = "169.254.169.254" },
		"Name":      func(p *corev1.Pod) { p.Status.PodIP = "example.com" },
		"Host":      func(p *corev1.Pod) { p.Spec.HostNetwork = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				of := &container{answer: answer(http.StatusOK, "b")}
				p := pod("b", time.Now())
				change(p)
				got, _ := ask(t, reload.NewCaller(time.Now, of), p)
				if of.sent() != 0 || got.Result != v1beta1.ReloadFailed || !strings.Contains(got.Message, "no address of its own") {
					t.Errorf("%d requests, %+v", of.sent(), got)
				}
			})
		})
	}
}

// A kubelet can miss a change of a pod. If the files stay old, the pod is changed again, a few times.
func TestRetries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		of := &container{answer: answer(http.StatusConflict, "a")}
		p := pod("b", time.Now())
		p.Annotations[v1beta1.AnnotationReload] = `{"http": {"port": 8080}, "timeoutSeconds": 100}`
		if got, _ := ask(t, reload.NewCaller(time.Now, of), p); got.Retries != 5 || got.Result != v1beta1.ReloadFailed {
			t.Errorf("%+v", got)
		}
	})
}

// A container that refused a version is asked again, and can recover. A new version is asked at once.
func TestAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		of := &container{answer: answer(http.StatusInternalServerError, "b")}
		caller, p := reload.NewCaller(time.Now, of), pod("b", time.Now())
		failed, after := ask(t, caller, p)
		text, err := json.Marshal(failed)
		if err != nil || after < 20*time.Second {
			t.Fatal(err, after)
		}
		p.Annotations[v1beta1.AnnotationReloadState] = string(text)
		if !reload.Failed(p) || reload.Complete(p) {
			t.Error("the pod should have failed")
		}
		of.play(answer(http.StatusOK, "b"))
		if got, _ := ask(t, caller, p); got.Result != v1beta1.Reloaded {
			t.Errorf("%+v", got)
		}
		of.play(answer(http.StatusOK, "c"))
		if got, _ := ask(t, caller, pod("c", time.Now())); got.Result != v1beta1.Reloaded || got.Version != "c" {
			t.Errorf("%+v", got)
		}
	})
}

// An update in place asks for a reload if it changes the version and a container wants to be told.
func TestBegin(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	method := `{"http": {"port": 8080}}`
	for name, c := range map[string]struct {
		why         string
		has         map[string]string
		annotations map[string]*string
		changes     bool
		want        string
	}{
		"Nothing":  {"Another annotation changes.", map[string]string{v1beta1.AnnotationReload: method}, map[string]*string{"a": new("b")}, false, ""},
		"Version":  {"The container is told.", map[string]string{v1beta1.AnnotationReload: method}, map[string]*string{v1beta1.AnnotationConfigurationVersion: new("b")}, true, `{"version":"b","since":"2026-11-30T00:00:00Z"}`},
		"Watches":  {"Without a method, it watches.", nil, map[string]*string{v1beta1.AnnotationConfigurationVersion: new("b")}, true, `{"version":"b","since":"2026-11-30T00:00:00Z","result":"NotAsked","finished":"2026-11-30T00:00:00Z"}`},
		"Method":   {"The method comes with the version.", nil, map[string]*string{v1beta1.AnnotationConfigurationVersion: new("b"), v1beta1.AnnotationReload: &method}, true, `{"version":"b","since":"2026-11-30T00:00:00Z"}`},
		"NoMethod": {"The method goes with the version.", map[string]string{v1beta1.AnnotationReload: method}, map[string]*string{v1beta1.AnnotationConfigurationVersion: new("b"), v1beta1.AnnotationReload: nil}, true, `{"version":"b","since":"2026-11-30T00:00:00Z","result":"NotAsked","finished":"2026-11-30T00:00:00Z"}`},
		"Removed":  {"There is no configuration any more.", map[string]string{v1beta1.AnnotationReload: method}, map[string]*string{v1beta1.AnnotationConfigurationVersion: nil}, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, changes, err := reload.Begin(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: c.has}}, c.annotations, now)
			if err != nil || changes != c.changes || (got == nil) != (c.want == "") || got != nil && *got != c.want {
				t.Errorf("%s got %v %v %v", c.why, got, changes, err)
			}
		})
	}
}

// A user can mend the method of a reload that does not end, or remove it: no pod waits for an answer that
// can't come. Without that, a pod whose method goes is never available again, and never failed.
func TestMethodChanges(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		why     string
		state   string
		method  *string
		changes bool
		want    string
	}{
		"Removed":  {"The container watches its files now.", `{"version":"b","since":"2026-11-29T00:00:00Z"}`, nil, true, `{"version":"b","since":"2026-11-30T00:00:00Z","result":"NotAsked","finished":"2026-11-30T00:00:00Z"}`},
		"Failed":   {"The same after a failure.", `{"version":"b","since":"2026-11-29T00:00:00Z","result":"Failed","message":"x"}`, nil, true, `{"version":"b","since":"2026-11-30T00:00:00Z","result":"NotAsked","finished":"2026-11-30T00:00:00Z"}`},
		"Mended":   {"The reload begins again, with all of its time.", `{"version":"b","since":"2026-11-29T00:00:00Z","result":"Failed","message":"x"}`, new(`{"http": {"port": 8081}}`), true, `{"version":"b","since":"2026-11-30T00:00:00Z"}`},
		"Reloaded": {"A container that runs the version is told nothing.", `{"version":"b","since":"2026-11-29T00:00:00Z","result":"Reloaded"}`, new(`{"http": {"port": 8081}}`), false, ""},
		"Broken":   {"A state that can't be parsed begins again, too.", `{`, new(`{"http": {"port": 8081}}`), true, `{"version":"b","since":"2026-11-30T00:00:00Z"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := pod("b", now)
			p.Annotations[v1beta1.AnnotationReloadState] = c.state
			got, changes, err := reload.Begin(p, map[string]*string{v1beta1.AnnotationReload: c.method}, now)
			if err != nil || changes != c.changes || (got == nil) != (c.want == "") || got != nil && *got != c.want {
				t.Errorf("%s got %v %v %v", c.why, got, changes, err)
			}
		})
	}
	p := pod("b", now)
	delete(p.Annotations, v1beta1.AnnotationReload)
	if due, err := reload.Due(p); due != nil || err != nil || !reload.Complete(p) {
		t.Errorf("a pod without a method waits: %v %v", due, err)
	}
}

// A state of another version is no proof for the version of the pod: OpenKruise can have updated the pod, and
// it knows no reload. Without that, the batch goes on, or the pod is asked for a version that never comes.
func TestStateOfAnotherVersion(t *testing.T) {
	t.Parallel()
	for _, result := range []v1beta1.ReloadResult{"", v1beta1.Reloaded, v1beta1.ReloadFailed} {
		synctest.Test(t, func(t *testing.T) {
			text, err := json.Marshal(v1beta1.ReloadState{Version: "b", Since: metav1.Now(), Result: result, Message: "x"})
			if err != nil {
				t.Fatal(err)
			}
			p := pod("c", time.Now())
			p.Annotations[v1beta1.AnnotationReloadState] = string(text)
			if reload.Complete(p) || reload.Failed(p) {
				t.Errorf("%q of another version counts", result)
			}
			of := &container{answer: answer(http.StatusOK, "c")}
			if got, _ := ask(t, reload.NewCaller(time.Now, of), p); got.Version != "c" || got.Result != v1beta1.Reloaded {
				t.Errorf("%+v", got)
			}
		})
	}
}
