package cmd_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ageKey is that of what stands in testdata/sops, which sops 3.13 encrypted.
const ageKey = "../registry/sops/testdata/keys.txt"

// sentinel matches what was encrypted: texts, the number, the short word, and
// base64 and the cut form of a text.
const sentinel = `SENTINEL|4815162342|4\.815162342e|SNTL|U0VOVElORU|UAL7ITmVMLXA0c3N3MHJk`

// newLeaky is a fleet of one cluster and one component, which gets encrypted
// meta-config, and whose chart has one template.
func newLeaky(t *testing.T, template, schema string) *fleet {
	t.Helper()
	f := &fleet{t: t, dir: t.TempDir(), kubeconfig: kubeconfig, rename: strings.NewReplacer()}
	f.write("fleet.yaml", "apiVersion: keelson.io/v1alpha1\nkind: Fleet\nname: test\n")
	f.write("components/leaky/component.yaml", "apiVersion: keelson.io/v1alpha1\nkind: Component\nnamespace: leaky\n")
	f.write("components/leaky/template/Chart.yaml", "apiVersion: v2\nname: leaky\nversion: 1.0.0\n")
	f.write("components/leaky/template/values.yaml", "size: 1\nsecrets: {}\n")
	f.write("components/leaky/template/templates/leaky.yaml", template)
	if schema != "" {
		f.write("components/leaky/template/values.schema.json", schema)
	}
	f.write("clusters/prod/cluster.yaml", "apiVersion: keelson.io/v1alpha1\nkind: Cluster\nconnection: {context: prod}\n")
	f.write("clusters/prod/leaky.yaml", readFile(t, "testdata/sops/leaky.yaml"))
	f.git("init", "-q", "-b", "main")
	f.commit()
	return f
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestDecrypted shows what a chart gets, and that it is seen on demand alone.
func TestDecrypted(t *testing.T) {
	t.Parallel()
	f := newLeaky(t, `apiVersion: v1
kind: Secret
metadata: {name: leaky}
stringData:
  password: {{ .Values.secrets.password }}
  pin: {{ .Values.secrets.pin | int64 | quote }}
  enabled: {{ .Values.secrets.enabled | quote }}
  multiline: {{ .Values.secrets.multiline | quote }}
  quoted: {{ .Values.secrets.quoted | quote }}
  size: {{ .Values.size | quote }}
`, "")
	r := f.keelson("render", "prod", "--age-key-file", ageKey, "--show-secrets").want(t, 0)
	r.says(t, "password: SENTINEL-p4ssw0rd", `pin: "4815162342"`, `enabled: "true"`, "-----END SENTINEL KEY-----\n",
		`SENTINEL "q'uoted" \ <&> 100%`, `size: "3"`)
	hidden(t, f.keelson("render", "prod", "--age-key-file", ageKey).want(t, 0)).says(t, "password: '***'")
	f.keelson("validate", "--age-key-file", ageKey).want(t, 0).says(t, "1 distinct render, no problems")
}

// hidden fails the test if a result holds something of what was encrypted.
func hidden(t *testing.T, r result) result {
	t.Helper()
	if found := regexp.MustCompile(sentinel).FindString(r.out + r.err); found != "" {
		t.Errorf("it tells %s\nstdout:\n%s\nstderr:\n%s", found, r.out, r.err)
	}
	return r
}

// TestLeaks is a chart that tries to get a decrypted value out, each time in
// another way. Whatever is said about it, the value is not.
func TestLeaks(t *testing.T) {
	t.Parallel()
	const object = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: leaky}\n"
	cases := map[string]struct {
		why, template, schema string
		code                  int // of validate
		says                  []string
	}{
		"Fail": {
			template: `{{ fail (printf "the password is %s" .Values.secrets.password) }}`,
			code:     1, says: []string{"leaky.yaml:1:4: the password is ***"},
		},
		"Required": {template: `{{ required (printf "not %s" .Values.secrets.password) .Values.nothing }}`, code: 1, says: []string{"not ***"}},
		"Lines": {
			why:      "A key is seen a line at a time.",
			template: `{{ fail (index (splitList "\n" .Values.secrets.multiline) 1) }}`, code: 1, says: []string{"***"},
		},
		"Indented":  {template: `{{ fail (.Values.secrets.multiline | indent 8) }}`, code: 1, says: []string{"***"}},
		"Quoted":    {template: `{{ fail (.Values.secrets.quoted | quote) }}`, code: 1},
		"Squoted":   {template: `{{ fail (.Values.secrets.quoted | squote) }}`, code: 1},
		"JSON":      {template: `{{ fail (toJson .Values.secrets) }}`, code: 1, says: []string{`"password":"***"`}},
		"YAML":      {template: `{{ fail (toYaml .Values.secrets) }}`, code: 1},
		"GoSyntax":  {template: `{{ fail (printf "%#v %v" .Values.secrets .Values) }}`, code: 1},
		"Base64":    {template: `{{ fail (b64enc .Values.secrets.password) }}`, code: 1},
		"URL":       {template: `{{ fail (urlquery .Values.secrets.quoted) }}`, code: 1},
		"Number":    {template: `{{ fail (printf "%v or %d" .Values.secrets.pin (int64 .Values.secrets.pin)) }}`, code: 1},
		"Short":     {template: `{{ fail (printf "it is %s." .Values.secrets.short) }}`, code: 1, says: []string{"it is ***."}},
		"Index":     {template: `{{ index .Values.secrets.password "x" }}`, code: 1},
		"Semver":    {template: `{{ semver .Values.secrets.password }}`, code: 1},
		"Template":  {template: `{{ include .Values.secrets.password . }}`, code: 1},
		"Tpl":       {template: `{{ tpl (printf "{{ %s" .Values.secrets.password) . }}`, code: 1},
		"FromYAML":  {template: `{{ fail (toYaml (fromYaml (printf "[%s" .Values.secrets.password))) }}`, code: 1},
		"BadYAML":   {template: object + "data: {x: [{{ .Values.secrets.password }}\n", code: 1},
		"BadNumber": {template: object + "data:\n  x: !!int {{ .Values.secrets.password }}\n", code: 1},
		"TwoKeys": {
			template: object + "data:\n  {{ .Values.secrets.password }}: a\n  {{ .Values.secrets.password }}: b\n",
			code:     0, says: []string{"already set in map", "is encrypted, and the chart puts it in clear text"},
		},
		"Kind":       {template: "apiVersion: v1\nkind: {{ .Values.secrets.password }}\nmetadata: {name: x}\n", code: 1, says: []string{"the kind of an object"}},
		"APIVersion": {template: "apiVersion: {{ .Values.secrets.password }}\nkind: X\nmetadata: {name: x}\n", code: 1, says: []string{"the apiVersion of an object"}},
		"NoName":     {template: "apiVersion: v1\nkind: {{ .Values.secrets.password }}\n", code: 1, says: []string{"an object of kind *** has no name"}},
		"Name": {
			why:      "Names are in each line of each log.",
			template: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x-{{ .Values.secrets.password | lower }}-{{ .Values.secrets.password }}}\n",
			code:     1, says: []string{"the name of an object of kind ConfigMap holds the value of .secrets.password, which is encrypted at clusters/prod/leaky.yaml:7:9", "can't be kept secret"},
		},
		"Twice": {template: strings.Repeat("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ .Values.secrets.password }}\"}\n---\n", 2), code: 1, says: []string{"stands twice"}},
		"Hook":  {template: object + "  annotations: {helm.sh/hook: {{ .Values.secrets.password }}}\n", code: 1},
		"UnknownHook": {
			template: "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: leaky\n  annotations: {helm.sh/hook: \"{{ .Values.secrets.password }}\"}\n",
			code:     0, says: []string{`the hook "***" is unknown`},
		},
		"Label": {
			template: "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: leaky\n  labels: {x: {{ .Values.secrets.password }}}\n",
			code:     0, says: []string{"clusters/prod/leaky.yaml:7:9: .secrets.password is encrypted, and the chart puts it in clear text into ConfigMap leaky/leaky at .metadata.labels.x"},
		},
		"ConfigMap": {
			why:      "The chart may do it. It is said, for other tools would not hide it, and not shown.",
			template: object + "data: {a: \"{{ .Values.secrets.password }}\", b: \"user:{{ .Values.secrets.password }}@db\", c: {{ toJson .Values.secrets.multiline }}}\n",
			code:     0, says: []string{"clusters/prod/leaky.yaml:7:9: .secrets.password is encrypted", "ConfigMap leaky/leaky at .data.a and at 1 more: only the data of a Secret is kept from view", ".secrets.multiline is encrypted"},
		},
		"Env": {
			template: "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: leaky}\nspec: {template: {spec: {containers: [{name: x, image: x, args: [\"--pin={{ int64 .Values.secrets.pin }}\"], ports: [{containerPort: {{ int64 .Values.secrets.pin }}}]}]}}}\n",
			code:     0, says: []string{"Deployment leaky/leaky at .spec.template.spec.containers[0].args[0]"},
		},
		"SecretMetadata": {
			why:      "A Secret hides its data, not its annotations.",
			template: "apiVersion: v1\nkind: Secret\nmetadata:\n  name: leaky\n  annotations: {x: {{ .Values.secrets.password }}}\n",
			code:     0, says: []string{"Secret leaky/leaky at .metadata.annotations.x"},
		},
		"Base64InAConfigMap": {template: object + "data: {a: {{ b64enc .Values.secrets.password }}}\n", code: 0, says: []string{".data.a"}},
		"Lookup":             {template: object + "data: {a: {{ lookup \"v1\" .Values.secrets.password \"x\" \"y\" | toJson | quote }}}\n", code: 0},
		"SchemaEnum":         {schema: `{"properties": {"secrets": {"properties": {"password": {"enum": ["a"]}}}}}`, code: 1, says: []string{"clusters/prod/leaky.yaml:7"}},
		"SchemaConst":        {schema: `{"properties": {"secrets": {"properties": {"password": {"const": "a"}}}}}`, code: 1},
		"SchemaType":         {schema: `{"properties": {"secrets": {"properties": {"password": {"type": "object"}}}}}`, code: 1},
		"SchemaMaximum":      {schema: `{"properties": {"secrets": {"properties": {"pin": {"maximum": 5}}}}}`, code: 1, says: []string{"must be at most 5, not ***"}},
		"SchemaMultiple":     {schema: `{"properties": {"secrets": {"properties": {"pin": {"multipleOf": 5}}}}}`, code: 1},
		"SchemaFormat":       {schema: `{"properties": {"secrets": {"properties": {"password": {"format": "ipv4"}, "quoted": {"maxLength": 2}}}}}`, code: 1},
		"SchemaAnyOf":        {schema: `{"properties": {"secrets": {"anyOf": [{"properties": {"password": {"const": 1}}}, {"properties": {"short": {"pattern": "^x"}}}]}}}`, code: 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			template := tc.template
			if template == "" {
				template = object
			}
			f := newLeaky(t, template, tc.schema)
			hidden(t, f.keelson("validate", "-v", "--age-key-file", ageKey).want(t, tc.code)).says(t, tc.says...)
			hidden(t, f.keelson("validate", "-o", "json", "--age-key-file", ageKey).want(t, tc.code))
			for _, format := range []string{"text", "json", "yaml"} {
				hidden(t, f.keelson("render", "prod", "-o", format, "--age-key-file", ageKey).want(t, 2*tc.code))
			}
			for _, args := range [][]string{{}, {"--show-secrets"}, {"-o", "json"}} {
				hidden(t, f.keelson(append([]string{"explain", "prod", "leaky", "--age-key-file", ageKey}, args...)...).want(t, 0)).
					says(t, "(encrypted)", "clusters/prod/leaky.yaml")
			}
		})
	}
}

// TestNoKey is what a machine without the key can do.
func TestNoKey(t *testing.T) {
	t.Parallel()
	f := newLeaky(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: leaky}\n", "")
	const recipient = "age1y855u7huhvzqpzsf8nlj0mn8nqmr5nsz6uhjwq47jh9z9z3jge6sknkn9n"

	f.keelson("validate").want(t, 0).
		says(t, "clusters/prod/leaky.yaml: there is no key for it: it is encrypted for "+recipient, "give --age-key-file", "1 encrypted file without a key")
	f.keelson("render", "prod").want(t, 2).says(t, "clusters/prod/leaky.yaml: there is no key for it: it is encrypted for "+recipient)
	f.keelson("explain", "prod", "leaky", ".secrets").want(t, 0).
		says(t, ".secrets.password", "(encrypted)", "clusters/prod/leaky.yaml:7:9", ".secrets.pin", "clusters/prod/leaky.yaml:10:9")
	// Whoever gives a key means it to fit.
	f.keelson("validate", "--age-key-file", "../registry/sops/testdata/other-keys.txt").want(t, 1).
		says(t, "there is no key for it", "looked in ../registry/sops/testdata/other-keys.txt", "(on prod)")

	empty := filepath.Join(t.TempDir(), "keys.txt")
	if err := os.WriteFile(empty, []byte("# nothing\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.keelson("validate", "--age-key-file", empty).want(t, 2).says(t, "holds no key")
	f.keelson("validate", "--age-key-file", empty+"x").want(t, 2).says(t, "no such file")
	if err := os.WriteFile(empty, []byte("\nAGE-SECRET-KEY-1SENTINEL\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	hidden(t, f.keelson("validate", "--age-key-file", empty).want(t, 2)).says(t, "line 2 is no age identity")
	if err := os.WriteFile(empty, []byte("AGE-PLUGIN-SENTINEL-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	hidden(t, f.keelson("validate", "--age-key-file", empty).want(t, 2)).says(t, "line 1 is for a plugin; Keelson runs no programs")
}

// TestTampered: if an encrypted file was changed without the key, it is not delivered, and the
// error says so.
func TestTampered(t *testing.T) {
	t.Parallel()
	f := newLeaky(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: leaky}\n", "")
	f.edit("clusters/prod/leaky.yaml", "size: 3", "size: 4")
	f.commit()
	f.keelson("validate", "--age-key-file", ageKey).want(t, 1).
		says(t, "clusters/prod/leaky.yaml: the file was changed after it was encrypted: its MAC does not match", "sops edit")
}

// TestLeaksLive: neither a diff nor what an API server says tells a value that a
// chart puts where it is seen.
func TestLeaksLive(t *testing.T) {
	c := live(t)
	f := newLeaky(t, `apiVersion: v1
kind: Secret
metadata: {name: leaky}
stringData: {password: {{ .Values.secrets.password | quote }}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: leaky}
data:
  dsn: "postgres://app:{{ .Values.secrets.password }}@db"
  pin: {{ int64 .Values.secrets.pin | quote }}
  multiline: {{ .Values.secrets.multiline | quote }}
  quoted: {{ .Values.secrets.quoted | quote }}
---
apiVersion: v1
kind: Service
metadata: {name: leaky}
spec: {clusterIP: None, ports: [{port: 80}]}
`, "")
	key := []string{"--age-key-file", ageKey}
	diff := func(code int) {
		t.Helper()
		for _, format := range []string{"text", "json", "yaml", "patch", "markdown"} {
			hidden(t, f.keelson(append([]string{"diff", "prod", "-v", "-o", format}, key...)...).want(t, code))
		}
	}
	t.Log("nothing is there yet")
	diff(1)
	hidden(t, f.keelson("apply", "prod", "--yes").want(t, 2)).says(t, "there is no key for it", "age1y855")

	t.Log("applied")
	hidden(t, f.keelson(append([]string{"apply", "prod", "--yes", "-v"}, key...)...).want(t, 0)).says(t, "leaky HEAD synced")
	diff(0)
	got, err := c.CoreV1().ConfigMaps("leaky").Get(t.Context(), "leaky", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if want := "postgres://app:SENTINEL-p4ssw0rd@db"; got.Data["dsn"] != want {
		t.Errorf("the cluster has %q, want %q", got.Data["dsn"], want)
	}

	t.Log("drift")
	got.Data["dsn"] = "postgres://app:SENTINEL-p4ssw0rd@elsewhere"
	delete(got.Data, "multiline")
	if _, err := c.CoreV1().ConfigMaps("leaky").Update(t.Context(), got, metav1.UpdateOptions{FieldManager: "kubectl-edit"}); err != nil {
		t.Fatal(err)
	}
	diff(1)
	hidden(t, f.keelson(append([]string{"apply", "prod", "--yes"}, key...)...).want(t, 0))

	t.Log("an API server that refuses a value quotes it")
	f.edit("components/leaky/template/templates/leaky.yaml", "kind: Service\nmetadata: {name: leaky}",
		"kind: Service\nmetadata: {name: leaky, labels: {x: {{ .Values.secrets.quoted | quote }}}}")
	f.edit("components/leaky/template/templates/leaky.yaml", "{port: 80}", "{port: {{ int64 .Values.secrets.pin }}}")
	f.commit()
	for _, format := range []string{"text", "json", "patch", "markdown"} {
		hidden(t, f.keelson(append([]string{"diff", "prod", "-o", format}, key...)...))
	}
	hidden(t, f.keelson(append([]string{"apply", "prod", "--yes"}, key...)...)).says(t, "Invalid value", "***")
}
