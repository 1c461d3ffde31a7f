package cluster

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/keelson-io/keelson/lab/pki"
)

//go:embed files
var files embed.FS

// writeFiles writes all files that the processes of a new cluster read.
func (r *record) writeFiles(now time.Time) error {
	for _, dir := range []string{"pki", "kubeconfig", "config", "logs"} {
		if err := os.MkdirAll(r.path(dir), 0o700); err != nil {
			return fmt.Errorf("make the folder of %s: %w", r.Name, err)
		}
	}
	if err := r.writePKI(now); err != nil {
		return err
	}
	return r.writeConfig()
}

// writeConfig writes the embedded files; a restarted cluster gets the current versions.
func (r *record) writeConfig() error {
	policy, err := policy(r.Options.Audit)
	if err != nil {
		return err
	}
	if err := write(r.config("audit-policy.yaml"), policy); err != nil {
		return err
	}
	stages, err := stages()
	if err != nil {
		return err
	}
	return write(r.config("stages.yaml"), stages)
}

// auditRules returns the rules that precede the common rules of the audit policy, by
// level.
func auditRules() map[Audit]string {
	return map[Audit]string{
		AuditBodies: "",
		AuditSecrets: `
  - level: RequestResponse
    users: [` + Keelson + `]
    verbs: [create, update, patch, delete, deletecollection]
    resources:
      - group: ""
        resources: [secrets]
    omitManagedFields: false
`,
		AuditMetadata: `
  - level: Metadata
    users: [` + Keelson + `]
`,
	}
}

// policy returns the audit policy of a level.
func policy(level Audit) ([]byte, error) {
	data, err := files.ReadFile("files/audit-policy.yaml")
	if err != nil {
		return nil, fmt.Errorf("read an embedded file: %w", err)
	}
	const rules = "\nrules:\n"
	return bytes.Replace(data, []byte(rules), []byte(rules+strings.TrimPrefix(auditRules()[level], "\n")), 1), nil
}

// stages returns all stages of kwok as one YAML stream.
func stages() ([]byte, error) {
	paths, err := fs.Glob(files, "files/stages/*.yaml")
	if err != nil {
		return nil, fmt.Errorf("list the embedded stages: %w", err)
	}
	var all []byte
	for _, path := range paths {
		data, err := files.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read an embedded file: %w", err)
		}
		all = append(append(all, "---\n"...), data...)
	}
	return all, nil
}

// writePKI writes the keys and certificates. Cluster, aggregation layer and etcd have
// separate authorities, so that a certificate is valid only for its purpose.
func (r *record) writePKI(now time.Time) error {
	ca, err := r.authority("ca", now)
	if err != nil {
		return err
	}
	frontProxyCA, err := r.authority("front-proxy-ca", now)
	if err != nil {
		return err
	}
	etcdCA, err := r.authority("etcd-ca", now)
	if err != nil {
		return err
	}
	local := []string{"127.0.0.1", "localhost"}
	if r.Options.real() {
		services, err := netip.ParsePrefix(r.Options.ServiceCIDR)
		if err != nil {
			return fmt.Errorf("%s: %w", r.Name, err)
		}
		// The API server's addresses as nodes and pods use them.
		local = append(local, machine, services.Masked().Addr().Next().String())
	}
	for file, issue := range map[string]struct {
		by      *pki.Authority
		subject pki.Subject
	}{
		"apiserver": {ca, pki.Subject{Name: "kube-apiserver", Hosts: append([]string{
			"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		}, local...)}},
		"etcd":               {etcdCA, pki.Subject{Name: "etcd", Hosts: local}},
		"front-proxy-client": {frontProxyCA, pki.Subject{Name: "front-proxy-client"}},
		kubeletUser:          {ca, pki.Subject{Name: kubeletUser, Groups: []string{"system:masters"}}},
	} {
		pair, err := issue.by.Issue(issue.subject, now)
		if err != nil {
			return fmt.Errorf("%s: %w", r.Name, err)
		}
		if err := r.writePair(file, ".crt", pair); err != nil {
			return err
		}
	}
	account, err := pki.NewKeyPair()
	if err != nil {
		return fmt.Errorf("%s: %w", r.Name, err)
	}
	if err := r.writePair("service-account", ".pub", account); err != nil {
		return err
	}
	if err := r.writeNodes(ca, now); err != nil {
		return err
	}
	return r.writeKubeconfigs(ca, now)
}

func (r *record) writeKubeconfigs(ca *pki.Authority, now time.Time) error {
	masters := []string{"system:masters"}
	for file, user := range map[string]pki.Subject{
		Admin:                     {Name: Admin, Groups: masters},
		Keelson:                   {Name: Keelson},
		"kube-controller-manager": {Name: "system:kube-controller-manager"},
		"kube-scheduler":          {Name: "system:kube-scheduler"},
		"kwok":                    {Name: "kwok", Groups: masters},
		"kube-proxy":              {Name: "system:kube-proxy"},
	} {
		pair, err := ca.Issue(user, now)
		if err != nil {
			return fmt.Errorf("%s: %w", r.Name, err)
		}
		config, err := pki.Kubeconfig(r.Name, r.server(), user.Name, ca.Cert, pair)
		if err != nil {
			return fmt.Errorf("%s: %w", r.Name, err)
		}
		if err := write(r.kubeconfig(file), config); err != nil {
			return err
		}
	}
	return nil
}

func (r *record) authority(name string, now time.Time) (*pki.Authority, error) {
	a, err := pki.NewAuthority(r.Name+"-"+name, now)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.Name, err)
	}
	return a, r.writePair(name, ".crt", a.Pair)
}

func (r *record) writePair(name, public string, pair pki.Pair) error {
	if err := write(r.pki(name+public), pair.Cert); err != nil {
		return err
	}
	return write(r.pki(name+".key"), pair.Key)
}

func write(path string, data []byte) error {
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	return nil
}
