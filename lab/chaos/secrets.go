package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"filippo.io/age"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
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
func runSecrets(ctx context.Context, w *world) (result, error) {
	s := &secrets{world: w, result: result{did: "commands that stumble over secrets", must: 20}}
	if err := s.prepare(ctx); err != nil {
		return s.result, err
	}
	for _, step := range []func(context.Context) error{s.apply, s.spoil, s.runCommands, s.gitPassword, s.token, s.loops} {
		if err := step(ctx); err != nil {
			return s.result, err
		}
	}
	return s.result, nil
}

type secrets struct {
	*world
	repo, direct string
	env          []string
	result       result
}

// prepare commits the fleet, with meta-config that the real sops has encrypted.
func (s *secrets) prepare(ctx context.Context) error {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		return fmt.Errorf("make an age key: %w", err)
	}
	// The key is in an environment variable, as in a Pod. It must not leak either.
	s.env = []string{"SOPS_AGE_KEY=" + identity.String()}
	s.planted.add(identity.String(), "SOPS_AGE_KEY")
	files := map[string]string{}
	for _, l := range leakTemplates() {
		encrypted, err := s.encrypt(ctx, identity.Recipient().String(), fmt.Sprintf("%skind: MetaConfig\nversion: HEAD\nvalues:\n  secrets:\n    password: %q\n    token: %q\n",
			apiVersion, s.planted.plant("the encrypted password of "+l.name), s.planted.plain("the encrypted token of "+l.name)))
		if err != nil {
			return err
		}
		folder := "components/" + l.name + "/"
		maps.Copy(files, map[string]string{
			folder + "component.yaml":                     apiVersion + "kind: Component\nnamespace: " + l.name + "\nadopt: true\n",
			folder + "template/Chart.yaml":                "apiVersion: v2\nname: " + l.name + "\nversion: 1.0.0\n",
			folder + "template/templates/all.yaml":        l.template,
			"clusters/" + target + "/" + l.name + ".yaml": encrypted,
		})
		if l.schema != "" {
			files[folder+"template/values.schema.json"] = l.schema
		}
		s.ledger.OwnNamespace(l.name)
		s.clear[l.name] = l.clear
	}
	if s.repo, err = s.repository(ctx, "secrets", files); err != nil {
		return err
	}
	s.direct, err = s.world.direct()
	return err
}

func (s *secrets) encrypt(ctx context.Context, recipient, text string) (string, error) {
	c := exec.CommandContext(ctx, s.sops, "encrypt", "--age", recipient, "--encrypted-regex", "^secrets$", "--input-type", "yaml", "--output-type", "yaml", "/dev/stdin")
	c.Stdin = strings.NewReader(text)
	var problems bytes.Buffer
	c.Stderr = &problems
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("sops (make bin/sops): %w: %s", err, problems.String())
	}
	return string(out), nil
}

// command runs keelson, and returns an error unless the exit code is one of codes. A
// command that failed early would have no output to search.
func (s *secrets) command(ctx context.Context, codes []int, args ...string) (string, error) {
	code, out, err := s.run(ctx, launch{name: args[0], repo: s.repo, kubeconfig: s.direct, env: s.env}, args...)
	if err != nil {
		return "", err
	}
	s.result.number++
	if slices.Contains(codes, code) {
		s.result.survived++
		return out, nil
	}
	return out, fmt.Errorf("keelson %s ended with exit code %d, want %v:\n%s", strings.Join(args, " "), code, codes, tail(out))
}

func (s *secrets) apply(ctx context.Context) error {
	out, err := s.command(ctx, []int{2}, "apply", target, "--yes", "--verbose", "--timeout", "10s", "--no-wait")
	if err != nil {
		return err
	}
	for _, l := range leakTemplates() {
		if !strings.Contains(out, l.name) {
			return fmt.Errorf("apply did not say how %s ended:\n%s", l.name, tail(out))
		}
	}
	if !strings.Contains(out, "***") {
		return fmt.Errorf("apply masked nothing: the secrets did not come near:\n%s", tail(out))
	}
	return nil
}

// spoil writes secrets into objects in the cluster, as people do, so that diffs show the
// objects.
func (s *secrets) spoil(ctx context.Context) error {
	d, err := s.dynamic()
	if err != nil {
		return err
	}
	all := d.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"})
	login, err := all.Namespace("leak-good").Get(ctx, "login", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read what was delivered: %w", err)
	}
	login.Object["stringData"] = map[string]any{
		"password": s.planted.plant("a Secret that a person changed"), "extra": s.planted.plant("a key that a person added to a Secret"),
	}
	if _, err := all.Namespace("leak-good").Update(ctx, login, metav1.UpdateOptions{FieldManager: "kubectl-edit"}); err != nil {
		return fmt.Errorf("change a Secret: %w", err)
	}
	old, err := all.Namespace("leak-encoded").Get(ctx, "login", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read what was delivered: %w", err)
	}
	// kubectl's copy of a Secret contains the values in clear text.
	notes := old.GetAnnotations()
	if notes == nil {
		notes = map[string]string{}
	}
	notes["kubectl.kubernetes.io/last-applied-configuration"] = fmt.Sprintf(`{"stringData":{"password":%q}}`, s.planted.plant("kubectl's copy of a Secret"))
	old.SetAnnotations(notes)
	if _, err := all.Namespace("leak-encoded").Update(ctx, old, metav1.UpdateOptions{FieldManager: "kubectl-client-side-apply"}); err != nil {
		return fmt.Errorf("change a Secret: %w", err)
	}
	return nil
}

// runCommands runs all commands that print something about the fleet.
func (s *secrets) runCommands(ctx context.Context) error {
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
		if _, err := s.command(ctx, []int{0, 1, 2}, args...); err != nil {
			return err
		}
	}
	return nil
}

// gitPassword gives Keelson a password for a git server that refuses the password and
// quotes it in the answer.
func (s *secrets) gitPassword(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("serve git: %w", err)
	}
	asked := make(chan struct{}, 100)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		_, password, _ := r.BasicAuth()
		w.Header().Set("WWW-Authenticate", "Basic")
		http.Error(w, "no access for "+r.Header.Get("Authorization")+" "+password, http.StatusForbidden)
	})}
	go func() { _ = server.Serve(listener) }() // ends with Close
	defer func() { _ = server.Close() }()
	password := s.planted.plain("KEELSON_GIT_PASSWORD")
	here := "http://" + listener.Addr().String() + "/fleet.git"
	inURL := "http://git:" + s.planted.plain("the URL of the repository") + "@" + listener.Addr().String() + "/fleet.git"
	for _, repo := range []string{here, inURL} {
		l := launch{name: "git", repo: repo, kubeconfig: s.direct, env: []string{"KEELSON_GIT_USERNAME=git", "KEELSON_GIT_PASSWORD=" + password}}
		code, out, err := s.run(ctx, l, "validate", "--plain-http", "--verbose")
		if err != nil {
			return err
		}
		if code == 0 || len(out) == 0 {
			return fmt.Errorf("keelson read a repository that refuses it: exit code %d, %s", code, out)
		}
		s.result.number++
		s.result.survived++
	}
	return nil
}

// token gives Keelson kubeconfigs with a token, a password and a key that the API server
// refuses.
func (s *secrets) token(ctx context.Context) error {
	config, err := clientcmd.LoadFromFile(s.direct)
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	current := config.Contexts[config.CurrentContext]
	for where, user := range map[string]*clientcmdapi.AuthInfo{
		"token":    {Token: s.planted.plain("a token of the kubeconfig")},
		"password": {Username: "admin", Password: s.planted.plain("a password of the kubeconfig")},
		"key":      {ClientKeyData: []byte(s.planted.plain("a key of the kubeconfig")), ClientCertificateData: []byte("no certificate")},
	} {
		config.AuthInfos[current.AuthInfo] = user
		content, err := clientcmd.Write(*config)
		if err != nil {
			return fmt.Errorf("write kubeconfig: %w", err)
		}
		path, err := s.kubeconfig("with-"+where, content)
		if err != nil {
			return err
		}
		code, out, err := s.run(ctx, launch{name: "token", repo: s.repo, kubeconfig: path, env: s.env}, "apply", target, "--yes", "--verbose")
		if err != nil {
			return err
		}
		if code != 2 {
			return fmt.Errorf("keelson got in with a %s that is none: exit code %d, %s", where, code, tail(out))
		}
		s.result.number++
		s.result.survived++
	}
	return nil
}

// loops runs the controller on the same fleet, and keeps a copy of its metrics.
func (s *secrets) loops(ctx context.Context) error {
	k, err := s.start(launch{name: "controller", repo: s.repo, kubeconfig: s.direct, env: s.env}, controllerArgs("127.0.0.1:0", "--verbose")...)
	if err != nil {
		return err
	}
	defer func() { _ = k.kill() }()
	err = until(ctx, hungAfter, func(ctx context.Context) error {
		all, err := s.deliveries(ctx)
		if err != nil {
			return err
		}
		for _, l := range leakTemplates() {
			if d := all[l.name]; d.sync == "" || d.sync == "Unknown" {
				return fmt.Errorf("%s has no status", l.name)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("the controller: %w (its log: %s)", err, k.log)
	}
	metrics, err := k.metrics(ctx)
	if err != nil {
		return err
	}
	if err := s.keepCopy("metrics.txt", metrics); err != nil {
		return err
	}
	s.result.number++
	s.result.survived++
	return k.stop(ctx)
}

// metrics reads the metrics of the process. The address is in the log.
func (k *keelson) metrics(ctx context.Context) ([]byte, error) {
	log, err := os.ReadFile(k.log)
	if err != nil {
		return nil, fmt.Errorf("read the log of keelson: %w", err)
	}
	_, rest, ok := strings.Cut(string(log), "/readyz\" address=")
	if !ok {
		return nil, fmt.Errorf("the log does not say where metrics are: %s", k.log)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+strings.Fields(rest)[0]+"/metrics", nil)
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err == nil && !bytes.Contains(data, []byte("keelson_")) {
		err = errors.New("there is none of Keelson's")
	}
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	return data, nil
}
