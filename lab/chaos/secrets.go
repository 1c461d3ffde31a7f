package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"

	"filippo.io/age"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

// secretLeak is a component whose processing could leak secrets.
type secretLeak struct {
	name, template, schema string
	clear                  bool // the chart puts secrets into an object that isn't a Secret
}

// leakTemplates returns components that use secrets in right and wrong ways. Each has
// .Values.secrets.password and .Values.secrets.token, which are encrypted with SOPS.
func leakTemplates() []secretLeak {
	const (
		secret    = "apiVersion: v1\nkind: Secret\nmetadata: {name: login}\n"
		configMap = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\n"
		password  = "{{ .Values.secrets.password | quote }}"
	)
	return []secretLeak{
		{name: "leak-good", template: secret + "stringData: {password: " + password + "}\n"},
		{name: "leak-encoded", template: secret + "data: {password: {{ .Values.secrets.password | b64enc | quote }}}\n"},
		{name: "leak-clear", clear: true, template: configMap + "data: {password: " + password + ", url: \"https://x:{{ .Values.secrets.token }}@example.com\"}\n"},
		{name: "leak-env", clear: true, template: `apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec:
  replicas: 0
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec:
      containers:
      - {name: app, image: "app:v1", args: ["--token={{ .Values.secrets.token }}"], env: [{name: PASSWORD, value: ` + password + `}]}
`},
		{name: "leak-fail", template: `{{ fail (printf "the password is %s" .Values.secrets.password) }}`},
		{name: "leak-schema", template: secret, schema: `{"properties": {"secrets": {"properties": {"password": {"type": "integer"}, "token": {"enum": ["a"]}}}}}`},
		{name: "leak-yaml", template: configMap + "data: {x: [{{ .Values.secrets.token }}\n"},
		{name: "leak-encoding", template: secret + "data: {password: " + password + "}\n"},
		{name: "leak-type", template: configMap + "data: {x: {y: " + password + "}}\n"},
		{name: "leak-field", template: "apiVersion: v1\nkind: Service\nmetadata: {name: app}\nspec: {ports: [{port: 80, name: " + password + "}]}\n"},
		{name: "leak-name", template: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ .Values.secrets.token }}\"}\n"},
	}
}

// runSecrets plants secrets in Keelson's inputs, provokes errors with them, and runs every
// command that prints something. At the end of the run, leaks searches the output.
func runSecrets(ctx context.Context, w *world, r *result) {
	r.did, r.must = "commands that stumble over secrets", 20
	s := &secrets{world: w, result: r}
	s.prepare(ctx)
	s.apply(ctx)
	s.changeSecrets(ctx)
	s.runCommands(ctx)
	s.gitPassword(ctx)
	s.token(ctx)
	s.loops(ctx)
}

type secrets struct {
	*world
	repo   string
	env    []string
	result *result
}

// prepare commits the fleet, with meta-config that the real sops has encrypted.
func (s *secrets) prepare(ctx context.Context) {
	identity := must.Get(age.GenerateX25519Identity())
	// The key is in an environment variable, as in a Pod. It must not leak either.
	s.env = []string{"SOPS_AGE_KEY=" + identity.String()}
	s.planted.add("SOPS_AGE_KEY", identity.String)
	files := map[string]string{}
	for _, l := range leakTemplates() {
		encrypted := s.encrypt(ctx, identity.Recipient().String(), fmt.Sprintf("%skind: MetaConfig\nversion: HEAD\nvalues:\n  secrets:\n    password: %q\n    token: %q\n",
			apiVersion, s.planted.plant("the encrypted password of "+l.name), s.planted.plain("the encrypted token of "+l.name)))
		maps.Copy(files, componentFiles(l.name, "namespace: "+l.name+"\nadopt: true\n", "1.0.0", l.template))
		files["clusters/"+target+"/"+l.name+".yaml"] = encrypted
		if l.schema != "" {
			files["components/"+l.name+"/template/values.schema.json"] = l.schema
		}
		s.ledger.OwnNamespace(l.name)
		s.clear[l.name] = l.clear
	}
	s.repo = s.repository(ctx, "secrets", files)
}

func (s *secrets) encrypt(ctx context.Context, recipient, text string) string {
	c := exec.CommandContext(ctx, s.sops, "encrypt", "--age", recipient, "--encrypted-regex", "^secrets$", "--input-type", "yaml", "--output-type", "yaml", "/dev/stdin")
	c.Stdin = strings.NewReader(text)
	out, err := c.Output()
	if err != nil {
		must.Failf("sops (make bin/sops): %w: %s", err, harness.Stderr(err))
	}
	return string(out)
}

// command runs keelson, and fails unless the exit code is one of codes. A
// command that failed early would have no output to search.
func (s *secrets) command(ctx context.Context, codes []int, args ...string) string {
	code, out := s.run(ctx, launch{name: args[0], repo: s.repo, kubeconfig: s.direct(), env: s.env}, args...)
	s.result.number++
	if slices.Contains(codes, code) {
		s.result.survived++
		return out
	}
	must.Failf("keelson %s ended with exit code %d, want %v:\n%s", strings.Join(args, " "), code, codes, tail(out))
	return out
}

func (s *secrets) apply(ctx context.Context) {
	out := s.command(ctx, []int{2}, "apply", target, "--yes", "--verbose", "--timeout", "10s", "--no-wait")
	for _, l := range leakTemplates() {
		if !strings.Contains(out, l.name) {
			must.Failf("apply did not say how %s ended:\n%s", l.name, tail(out))
		}
	}
	if !strings.Contains(out, "***") {
		must.Failf("apply masked nothing: the secrets did not come near:\n%s", tail(out))
	}
}

// changeSecrets writes secrets into objects in the cluster, as people do, so that diffs show the
// objects.
func (s *secrets) changeSecrets(ctx context.Context) {
	d := s.dynamic()
	all := d.Resource(harness.Resource("v1/secrets"))
	login := must.Get(all.Namespace("leak-good").Get(ctx, "login", metav1.GetOptions{}))
	login.Object["stringData"] = map[string]any{
		"password": s.planted.plant("a Secret that a person changed"), "extra": s.planted.plant("a key that a person added to a Secret"),
	}
	must.Get(all.Namespace("leak-good").Update(ctx, login, metav1.UpdateOptions{FieldManager: "kubectl-edit"}))
	old := must.Get(all.Namespace("leak-encoded").Get(ctx, "login", metav1.GetOptions{}))
	// kubectl's copy of a Secret contains the values in clear text.
	notes := old.GetAnnotations()
	if notes == nil {
		notes = map[string]string{}
	}
	notes["kubectl.kubernetes.io/last-applied-configuration"] = fmt.Sprintf(`{"stringData":{"password":%q}}`, s.planted.plant("kubectl's copy of a Secret"))
	old.SetAnnotations(notes)
	must.Get(all.Namespace("leak-encoded").Update(ctx, old, metav1.UpdateOptions{FieldManager: "kubectl-client-side-apply"}))
}

// runCommands runs all commands that print something about the fleet.
func (s *secrets) runCommands(ctx context.Context) {
	commands := [][]string{
		{"validate"},
		{"render", target},
		{"render", target, "-o", "json"},
		{"explain", target, "leak-good"},
		{"explain", target, "leak-clear", "secrets.password"},
		{"diff", target},
		{"diff", target, "-o", "json"},
		{"diff", target, "-o", "yaml"},
		{"diff", target, "-o", "patch"},
		{"diff", target, "-o", "markdown"},
		{"apply", target, "--dry-run", "-o", "patch"},
		{"apply", target, "--yes", "--verbose", "--no-wait", "--timeout", "10s"},
		{"status", target},
		{"status", target, "-o", "json"},
		{"history", target},
		{"history", target, "-o", "json"},
	}
	for _, args := range commands {
		s.command(ctx, []int{0, 1, 2}, args...)
	}
}

// gitPassword gives Keelson a password for a git server that refuses the password and
// quotes it in the answer.
func (s *secrets) gitPassword(ctx context.Context) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		w.Header().Set("WWW-Authenticate", "Basic")
		http.Error(w, "no access for "+r.Header.Get("Authorization")+" "+password, http.StatusForbidden)
	}))
	defer server.Close()
	password := s.planted.plain("KEELSON_GIT_PASSWORD")
	here := server.URL + "/fleet.git"
	inURL := strings.Replace(here, "http://", "http://git:"+s.planted.plain("the URL of the repository")+"@", 1)
	for _, repo := range []string{here, inURL} {
		l := launch{name: "git", repo: repo, kubeconfig: s.direct(), env: []string{"KEELSON_GIT_USERNAME=git", "KEELSON_GIT_PASSWORD=" + password}}
		code, out := s.run(ctx, l, "validate", "--plain-http", "--verbose")
		if code == 0 || len(out) == 0 {
			must.Failf("keelson read a repository that refuses it: exit code %d, %s", code, out)
		}
		s.result.number++
		s.result.survived++
	}
}

// token gives Keelson kubeconfigs with a token, a password and a key that the API server
// refuses.
func (s *secrets) token(ctx context.Context) {
	config := must.Get(clientcmd.LoadFromFile(s.direct()))
	current := config.Contexts[config.CurrentContext]
	for where, user := range map[string]*clientcmdapi.AuthInfo{
		"token":    {Token: s.planted.plain("a token of the kubeconfig")},
		"password": {Username: "admin", Password: s.planted.plain("a password of the kubeconfig")},
		"key":      {ClientKeyData: []byte(s.planted.plain("a key of the kubeconfig")), ClientCertificateData: []byte("no certificate")},
	} {
		config.AuthInfos[current.AuthInfo] = user
		content := must.Get(clientcmd.Write(*config))
		path := s.kubeconfig("with-"+where, content)
		code, out := s.run(ctx, launch{name: "token", repo: s.repo, kubeconfig: path, env: s.env}, "apply", target, "--yes", "--verbose")
		if code != 2 {
			must.Failf("keelson got in with a %s that is none: exit code %d, %s", where, code, tail(out))
		}
		s.result.number++
		s.result.survived++
	}
}

// loops runs the controller on the same fleet, and keeps a copy of its metrics.
func (s *secrets) loops(ctx context.Context) {
	k := s.start(launch{name: "controller", repo: s.repo, kubeconfig: s.direct(), env: s.env}, controllerArgs("127.0.0.1:0", "--verbose")...)
	defer func() { _ = k.Kill() }()
	must.Wrap(func() {
		until(ctx, hungAfter, func(ctx context.Context) {
			all := must.Get(harness.Deliveries(ctx, s.dynamic(), ""))
			for _, l := range leakTemplates() {
				if d := all[target+"."+l.name]; d.Sync == "" || d.Sync == "Unknown" {
					must.Failf("%s has no status", l.name)
				}
			}
		})
	}, "the controller (its log: %s)", k.Log)
	metrics := must.Get(harness.MetricsText(ctx, must.Get(harness.Served(k.Log, "/metrics"))))
	if !bytes.Contains(metrics, []byte("keelson_")) {
		must.Failf("there is no metric of Keelson's (its log: %s)", k.Log)
	}
	s.keepCopy("metrics.txt", metrics)
	s.result.number++
	s.result.survived++
	k.stop(ctx)
}
