// Package pki makes the keys, certificates and kubeconfig files of one cluster. The
// authorities that sign the certificates belong only to that cluster, and are removed
// with the cluster's folder.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"

	"k8s.io/client-go/util/keyutil"
)

// lifetime is the validity of all certificates. Labs are short-lived, so a year is enough.
const lifetime = 365 * 24 * time.Hour

// Pair is a certificate and its key, both as PEM.
type Pair struct {
	Cert, Key []byte
}

// Authority signs certificates.
type Authority struct {
	Pair
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Subject is the subject of a certificate. Kubernetes reads the user from Name and
// the groups from Groups. Hosts are the names and addresses of a server.
type Subject struct {
	Name   string
	Groups []string
	Hosts  []string
}

// NewAuthority makes a self-signed authority, valid from one hour before now.
func NewAuthority(name string, now time.Time) (*Authority, error) {
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	return sign(template, nil, now)
}

// Issue makes a key and a signed client certificate. The certificate is also valid for a
// server if the subject has hosts.
func (a *Authority) Issue(s Subject, now time.Time) (Pair, error) {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: s.Name, Organization: s.Groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, host := range s.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	if len(s.Hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	issued, err := sign(template, a, now)
	if err != nil {
		return Pair{}, err
	}
	return issued.Pair, nil
}

// NewKeyPair makes a key pair without a certificate. Cert holds the public key. Service
// account tokens are signed and verified with the pair.
func NewKeyPair() (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("make a key: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return Pair{}, fmt.Errorf("encode a public key: %w", err)
	}
	private, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return Pair{}, fmt.Errorf("encode a private key: %w", err)
	}
	return Pair{Cert: block("PUBLIC KEY", public), Key: private}, nil
}

// sign makes a key and a certificate that by signs; without by, the certificate is self-signed.
func sign(template *x509.Certificate, by *Authority, now time.Time) (*Authority, error) {
	fail := func(err error) (*Authority, error) {
		return nil, fmt.Errorf("make the certificate of %s: %w", template.Subject.CommonName, err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fail(err)
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return fail(err)
	}
	// One hour back, because the clocks of machines that share a home directory differ.
	template.NotBefore, template.NotAfter = now.Add(-time.Hour), now.Add(lifetime)
	parent, signer := template, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return fail(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return fail(err)
	}
	private, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return fail(err)
	}
	return &Authority{Pair: Pair{Cert: block("CERTIFICATE", der), Key: private}, cert: cert, key: key}, nil
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
