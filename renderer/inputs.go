package renderer

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// inputHash is the hash of everything that a render depends on, except which kinds have no
// namespace: a target lists the kinds that it met (see [Target.Scopes]).
type inputHash [sha256.Size]byte

// inputs is the part of a request that a render uses. Images are those that the cluster pulls: a
// mirror of a host without images changes nothing.
type inputs struct {
	Component   string
	Version     string // source positions name it
	Tree        string
	Files       string // instead of a tree
	Namespace   string
	Determinism v1alpha1.Determinism
	Images      map[string]any
	Values      map[string]any
	Seals       []string // hashes of encrypted files: each is verified as a whole
	Kubernetes  string
	APIVersions []string
}

func hashInputs(r Request) (inputHash, error) {
	sees := seenBy(r)
	in := ofGit(r)
	in.Version, in.Kubernetes, in.APIVersions = r.Version.Name, sees.kubeVersion, sees.apiVersions
	return in.hash(r)
}

// ofGit returns the inputs that come from git. They do not depend on the cluster, nor on positions.
func ofGit(r Request) inputs {
	in := inputs{
		Component:   r.Version.Component,
		Tree:        r.Version.Tree,
		Namespace:   r.Version.Spec.Namespace,
		Determinism: r.Version.Spec.Determinism,
		Images:      r.Version.ImageValues(r.ImageMirrors),
		Values:      r.Values.Map(),
	}
	if r.Version.Tree == "" { // not from git
		in.Files = hashFiles(r)
	}
	for _, seal := range r.Values.EncryptedFiles() {
		in.Seals = append(in.Seals, seal.Hash)
	}
	return in
}

func (in inputs) hash(r Request) (inputHash, error) {
	h := sha256.New()
	if err := json.NewEncoder(h).Encode(in); err != nil {
		return inputHash{}, newError(r.Version, componentPosition(r.Version, "component.yaml", 0),
			"values can't be written as JSON: "+err.Error(), err)
	}
	return inputHash(h.Sum(nil)), nil
}

// InputsOf returns a hash of what git contributes to a render, in 32 hexadecimal digits. It is the
// same for requests that differ only in the cluster's capabilities, or in positions. Encrypted
// values are hashed as they are. It costs microseconds.
func InputsOf(r Request) (string, error) {
	sum, err := ofGit(r).hash(r)
	if err != nil {
		return "", err
	}
	return hex.EncodeToString(sum[:16]), nil
}

func hashFiles(r Request) string {
	h := sha256.New()
	fmt.Fprintf(h, "%q ", r.Version.Archive) // positions name it
	for _, f := range r.Version.Chart {
		fmt.Fprintf(h, "%d %s %d ", len(f.Name), f.Name, len(f.Data))
		h.Write(f.Data)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// size estimates the bytes that the target takes in memory.
func (t *Target) size() int64 {
	n := int64(256)
	for _, list := range [][]*Object{t.Objects, t.Hooks} {
		for _, o := range list {
			n += 128 + sizeOf(o.Content)
		}
	}
	for _, w := range t.Warnings {
		n += 16 + int64(len(w))
	}
	return n
}

func sizeOf(v any) int64 {
	const word = 16 // an interface value
	n := int64(word)
	switch v := v.(type) {
	case string:
		n += int64(len(v))
	case []any:
		for _, e := range v {
			n += sizeOf(e)
		}
	case map[string]any:
		n += 48
		for k, e := range v {
			n += 2*word + int64(len(k)) + sizeOf(e)
		}
	}
	return n
}
