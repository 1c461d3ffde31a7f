package cluster

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/keelson-io/keelson/lab/pki"
)

//go:embed files
var files embed.FS

// writeFiles writes all files that the processes of a new cluster read.
func (s *clusterState) writeFiles(now time.Time) error {
	for _, dir := range []string{"pki", "kubeconfig", "config", "logs"} {
		if err := os.MkdirAll(s.dir.path(dir), 0o700); err != nil {
			return fmt.Errorf("make the folder of %s: %w", s.Name, err)
		}
	}
	if err := s.writePKI(now); err != nil {
		return err
	}
	return s.writeConfig()
}

// writeConfig writes the embedded files; a restarted cluster gets the current versions.
func (s *clusterState) writeConfig() error {
	policy, err := policy(s.Options.Audit)
	if err != nil {
		return err
	}
	if err := write(s.dir.config("audit-policy.yaml"), policy); err != nil {
		return err
	}
	stages, err := stages()
	if err != nil {
		return err
	}
	return write(s.dir.config("stages.yaml"), stages)
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
func (s *clusterState) writePKI(now time.Time) error {
	ca, err := s.authority("ca", now)
	if err != nil {
		return err
	}
	frontProxyCA, err := s.authority("front-proxy-ca", now)
	if err != nil {
		return err
	}
	etcdCA, err := s.authority("etcd-ca", now)
	if err != nil {
		return err
	}
	local := []string{"127.0.0.1", "localhost"}
	if s.Options.real() {
		services, err := netip.ParsePrefix(s.Options.ServiceCIDR)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
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
			return fmt.Errorf("%s: %w", s.Name, err)
		}
		if err := s.dir.writePair(file, ".crt", pair); err != nil {
			return err
		}
	}
	account, err := pki.NewKeyPair()
	if err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	if err := s.dir.writePair("service-account", ".pub", account); err != nil {
		return err
	}
	if err := s.writeNodes(ca, now); err != nil {
		return err
	}
	return s.writeKubeconfigs(ca, now)
}

func (s *clusterState) writeKubeconfigs(ca *pki.Authority, now time.Time) error {
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
			return fmt.Errorf("%s: %w", s.Name, err)
		}
		config, err := pki.Kubeconfig(s.Name, s.server(), user.Name, ca.Cert, pair)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
		if err := write(s.dir.kubeconfig(file), config); err != nil {
			return err
		}
	}
	return nil
}

func (s *clusterState) authority(name string, now time.Time) (*pki.Authority, error) {
	a, err := pki.NewAuthority(s.Name+"-"+name, now)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Name, err)
	}
	return a, s.dir.writePair(name, ".crt", a.Pair)
}
